"""`Driver`: launches the tries that `Progress` names, and follows them until they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

from rich import progress as bars
from rich.console import Console
from rich.markup import escape

from zeus_lightning.environment import CONTROL, OUTCOME_FILE
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.recur import summary
from zeus_lightning.recur.child import Child
from zeus_lightning.recur.ending import Ending, read_outcome
from zeus_lightning.recur.ledger import Ledger
from zeus_lightning.recur.progress import Plan, Progress, Try
from zeus_lightning.recur.service import Service
from zeus_lightning.version import __version__

_POLL_S = 0.1
_SERVICE_POLL_S = 5.0


@dataclass
class Driver:
    """Runs a command in each recurrence, again if its batch size fails.

    Each run gets, in its environment, `ZEUS_SERVER_URL`, `ZEUS_OUTCOME_FILE`, `ZEUS_RECURRENCE`
    (from 1), `ZEUS_CONTROL` (1 for a control trial), and `PL_GLOBAL_SEED` if the plan has a seed.

    Args:
        plan: What to run.
        command: Program and arguments.
        interval_s: Seconds from one recurrence's start to the next one's; None: they follow each
            other at once. Times that pass while none can begin are made up for once, not one by
            one.
        timeout_s: Seconds after which a run is ended; None: never.
        ledger: Where this is recorded; its folder gets the runs' output.
        service: The service that the runs use.
        display: Where the user sees what happens.

    Attributes:
        progress: What has been run.
        signal: The signal that ended `run`, or None.
    """

    plan: Plan
    command: Sequence[str]
    interval_s: float | None
    timeout_s: float | None
    ledger: Ledger
    service: Service
    display: Display

    def __post_init__(self) -> None:
        self.signal: int | None = None
        self._is_urgent = False
        self.progress = Progress(self.plan)
        self._children: dict[Try, Child] = {}
        self._last_s: float | None = None  # when the last recurrence began, in Unix seconds
        self._service_at_s = 0.0  # when to ask again whether it answers
        self._check_at_s = 0.0  # when to ask so for the runs under way

    def run(self) -> None:
        """Run until all is done, a run has stopped the driver, or a signal has come."""
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
        """Continue from the ledger; a run that a killed driver left has ended by now."""
        for event in self.ledger.events:
            if event["event"] == "driver":
                self.progress.resumed()
                continue
            each = Try(**event["try"])
            if event["event"] == "started":
                self.progress.started(each)
                self._last_s = event["at_s"] if each.attempt == 1 else self._last_s
            else:
                run = read_outcome(self._outcome_file(each))
                self.progress.ended(each, Ending(**event["ending"], run=run))
        self.progress.resumed()
        self.ledger.append(event="driver", command=list(self.command), version=__version__)
        for each in self.progress.running:
            self._ended(each, exit_code=None, cut_short=None)
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
        if self._last_s is not None and self.interval_s is not None:
            due_s = self._last_s + self.interval_s
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
        env = {"PYTHONUNBUFFERED": "1", **os.environ}
        env["ZEUS_SERVER_URL"] = self.service.url
        env["ZEUS_RECURRENCE"] = str(each.recurrence)
        env[OUTCOME_FILE] = str(outcome_file)
        env[CONTROL] = str(int(each.control))
        if each.seed is not None:
            env["PL_GLOBAL_SEED"] = str(each.seed)
        at_s = time.time()
        try:
            child = Child(self.command, env, self.log(each), self.timeout_s)
        except OSError as error:
            raise ZeusConfigError(f"{self.command[0]} cannot be run: {error}") from error
        self._children[each] = child
        self.ledger.append(
            **{"event": "started", "try": asdict(each)}, at_s=at_s, outcome_file=env[OUTCOME_FILE]
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
                self._ended(each, child.exit_code, child.cut_short)

    def _end_children(self) -> None:
        """End the runs after an error, unrecorded: `--resume` finds out how they ended."""
        while self._children:
            for each, child in list(self._children.items()):
                child.kill() if self._is_urgent else child.end("signal")
                if child.poll():
                    del self._children[each]
            time.sleep(_POLL_S)

    def _ended(
        self, each: Try, exit_code: int | None, cut_short: Literal["timeout", "signal"] | None
    ) -> None:
        run = read_outcome(self._outcome_file(each))
        ending = Ending(exit_code=exit_code, run=run, cut_short=cut_short)
        how: dict[str, Any] = {"exit_code": exit_code, "cut_short": cut_short}
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
        """End the runs in order on a signal; kill them when another one comes.

        Under `nohup`, SIGHUP ends nothing.
        """

        def stop(number: int, _frame: FrameType | None) -> None:
            # a terminal that closes may send SIGHUP twice
            self._is_urgent |= self.signal is not None and number != signal.SIGHUP
            self.signal = number

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Display:
    """What the user sees while the driver runs; used in a `with`.

    Each try that ends has a line, and a progress bar counts the recurrences.

    Args:
        console: Where to print.
        recurrences: How many there are to be.
    """

    def __init__(self, console: Console, recurrences: int) -> None:
        self._bar = bars.Progress(
            bars.TextColumn("recurrences"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("{task.description}"),
            console=console,
        )
        self._task = self._bar.add_task("", total=recurrences)
        self._is_waiting = False
        self._has_header = False

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show how many recurrences are complete, and what runs."""
        self._is_waiting = False
        running = ", ".join(f"{each.recurrence} (try {each.attempt})" for each in progress.running)
        self._describe(f"running: {running}" if running else "")
        self._bar.update(self._task, completed=len(progress.done))

    def ended(self, each: Try, ending: Ending) -> None:
        """Print the line of a try that has ended."""
        if not self._has_header:
            self._print(summary.HEADER)
        self._has_header = True
        style = "" if ending.result == "done" else "dim" if ending.result == "again" else "bold"
        self._print(summary.line(each, ending), style)

    def wait_until(self, due_s: float) -> None:
        """Show when the next recurrence is due, in Unix seconds."""
        self._describe(f"next at {datetime.fromtimestamp(due_s):%Y-%m-%d %H:%M:%S}")

    def wait_for(self, url: str) -> None:
        """Show that the service does not answer; the first time, print it."""
        text = f"waiting for the service at {url}"
        if not self._is_waiting:
            self._print(text)
        self._is_waiting = True
        self._describe(text)

    def _print(self, text: str, style: str = "") -> None:
        self._bar.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=escape(text))
