"""`Driver`: launches the tries that `Progress` names, and follows them until they have ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from zeus_lightning.environment import CONTROL, OUTCOME_FILE
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.recur.child import Child
from zeus_lightning.recur.display import Display
from zeus_lightning.recur.ledger import Ledger
from zeus_lightning.recur.outcome_file import read_outcome
from zeus_lightning.recur.progress import Ending, Plan, Progress, Try
from zeus_lightning.recur.schedule import Schedule
from zeus_lightning.recur.service import Service
from zeus_lightning.recur.signals import end_signals
from zeus_lightning.version import __version__

_POLL_S = 0.1
_SERVICE_POLL_S = 5.0


@dataclass
class Driver:
    """Runs a command in each recurrence, until it has reached its target in all of them.

    Each run gets, in its environment, `ZEUS_SERVER_URL`, `ZEUS_OUTCOME_FILE`, `ZEUS_RECURRENCE`
    (from 1), `ZEUS_CONTROL` (1 for a control trial), and `PL_GLOBAL_SEED` if the plan has a seed.

    Args:
        plan: What to run.
        command: Program and arguments.
        env: Variables for the runs, in addition to those of this process.
        workdir: Where the runs are started.
        schedule: When recurrences begin.
        timeout_s: Seconds after which a run is ended; None: never.
        ledger: Where this is recorded; its folder gets the runs' output.
        service: The service that the runs use.
        display: Where the user sees what happens.

    Attributes:
        progress: What has been run.
        signal: The signal that has ended `run`, or None.
    """

    plan: Plan
    command: Sequence[str]
    env: Mapping[str, str]
    workdir: Path
    schedule: Schedule
    timeout_s: float | None
    ledger: Ledger
    service: Service
    display: Display

    def __post_init__(self) -> None:
        self.signal: int | None = None
        self._is_urgent = False
        self.progress = Progress(self.plan)
        self._children: dict[Try, Child] = {}
        self._last_s: float | None = None  # when the last recurrence began
        self._started_s = time.time()
        self._service_at_s = 0.0  # when to ask again whether it answers
        self._check_at_s = 0.0  # when to ask so for the runs under way

    def run(self) -> None:
        """Run until all is done, a run has failed for good, or a signal has come."""
        with self._handled_signals():
            try:
                self._resume()
                while not self.progress.is_over and not (self.signal and not self._children):
                    if not self.signal:
                        self._launch_due()
                    self._poll_children()
                    self._check_service()
                    time.sleep(_POLL_S)
            except BaseException:
                self._end_children()
                raise

    def log(self, each: Try) -> Path:
        """The file of a try's output."""
        return self.ledger.folder / f"{each}.log"

    def _resume(self) -> None:
        """Take over from an earlier driver, if the ledger is one's, with runs that it has left."""
        children: dict[Try, Child] = {}
        for event in self.ledger.events:
            if event["event"] == "driver":
                self.progress.resumed()
                continue
            each = Try(**event["try"])
            if event["event"] == "started":
                self.progress.started(each)
                self._last_s = event["at_s"] if each.attempt == 1 else self._last_s
                left_s = self.timeout_s
                if left_s is not None:
                    left_s -= max(0.0, time.time() - event["at_s"])  # clocks may be set back
                children[each] = Child.adopt(event["pid"], event["created"], left_s)
            else:
                run = read_outcome(self._outcome_file(each))
                self.progress.ended(each, Ending(**event["ending"], run=run))
        self.progress.resumed()
        self._children = {each: children[each] for each in self.progress.running}
        self.ledger.append(
            event="driver", mode=self.plan.mode, command=list(self.command), version=__version__
        )
        self.display.show(self.progress)

    def _launch_due(self) -> None:
        while (each := self.progress.next_retry() or self._due()) is not None:
            if not self._service_answers():
                return
            self._launch(each)

    def _due(self) -> Try | None:
        """The next recurrence's first try, if it is time for it."""
        each = self.progress.next_recurrence()
        if each is None:
            return None
        due_s = self.schedule(self._last_s, self._started_s)
        if due_s > time.time():
            self.display.wait_until(due_s)
            return None
        return each

    def _service_answers(self) -> bool:
        """Whether the service answers; while it does not, runs wait."""
        if time.monotonic() < self._service_at_s:
            return False
        if self.service.answers():
            return True
        self._service_at_s = time.monotonic() + _SERVICE_POLL_S
        self.display.wait_for(self.service.url)
        return False

    def _check_service(self) -> None:
        """While runs are under way, ask whether the service answers: its own starts again then."""
        if self._children and time.monotonic() >= self._check_at_s:
            self.service.answers()
            self._check_at_s = time.monotonic() + _SERVICE_POLL_S

    def _launch(self, each: Try) -> None:
        outcome_file = self._outcome_file(each)
        outcome_file.unlink(missing_ok=True)
        env = {"PYTHONUNBUFFERED": "1", **os.environ, **self.env}
        env["ZEUS_SERVER_URL"] = self.service.url
        env["ZEUS_RECURRENCE"] = str(each.recurrence)
        env[OUTCOME_FILE] = str(outcome_file)
        env[CONTROL] = str(int(each.control))
        if each.seed is not None:
            env["PL_GLOBAL_SEED"] = str(each.seed)
        at_s = time.time()
        try:
            child = Child.launch(self.command, env, self.workdir, self.log(each), self.timeout_s)
        except OSError as error:
            raise ZeusConfigError(f"{self.command[0]} cannot be run: {error}") from error
        self._children[each] = child
        pid, created = child.identity
        self.ledger.append(
            **{"event": "started", "try": asdict(each)}, at_s=at_s, pid=pid, created=created
        )
        self._last_s = at_s if each.attempt == 1 else self._last_s
        self.progress.started(each)
        self.display.show(self.progress)

    def _poll_children(self) -> None:
        for each, child in list(self._children.items()):
            if self.signal is not None:
                child.kill() if self._is_urgent else child.end("signal")
            if child.poll():
                del self._children[each]
                self._ended(each, child)

    def _end_children(self) -> None:
        """End the runs after an error, unrecorded: `--resume` finds out how they have ended."""
        while self._children:
            for each, child in list(self._children.items()):
                child.kill() if self._is_urgent else child.end("signal")
                if child.poll():
                    del self._children[each]
            time.sleep(_POLL_S)

    def _ended(self, each: Try, child: Child) -> None:
        run = read_outcome(self._outcome_file(each))
        ending = Ending(exit_code=child.exit_code, run=run, cut_short=child.cut_short)
        how: dict[str, Any] = {"exit_code": ending.exit_code, "cut_short": ending.cut_short}
        self.ledger.append(**{"event": "ended", "try": asdict(each)}, ending=how)
        self.progress.ended(each, ending)
        if run is not None and run.outcome is None:
            self.service.end_trial(run, f"the run's process has ended ({ending.outcome})")
        self.display.ended(each, ending)
        self.display.show(self.progress)

    def _outcome_file(self, each: Try) -> Path:
        return self.ledger.folder.absolute() / f"{each}.json"

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """End the runs in order on a signal; kill them when another one comes."""

        def stop(number: int, _frame: FrameType | None) -> None:
            # a terminal that closes may send SIGHUP twice
            self._is_urgent |= self.signal is not None and number != signal.SIGHUP
            self.signal = number

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, *end_signals())}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
