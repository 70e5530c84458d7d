"""`Driver`: runs a command in each recurrence, again if its batch size fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console

from zeus_lightning.client import BSOClient
from zeus_lightning.environment import CONTROL, OUTCOME_FILE
from zeus_lightning.errors import ZeusConfigError, ZeusError
from zeus_lightning.recur import summary
from zeus_lightning.recur.child import Child
from zeus_lightning.recur.ending import Try
from zeus_lightning.run.record import TrialRecord

Mode = Literal["choose", "observe", "compare"]
"""`observe` runs only control trials; `compare` runs them in each odd recurrence."""

MAX_TRIES = 20
"""Of one recurrence, with batch sizes that fail."""

_ERRORS_TO_STOP = 3
"""In a row, with the default batch size: then the program is wrong, not a batch size."""

_POLL_S = 0.1
_SERVICE_POLL_S = 5.0
_TIMEOUT_S = 2.0
_LAST_LINES = 20
_LAST_BYTES = 10_000


class Driver:
    """Runs a command in each recurrence, again if its batch size fails.

    Each run gets, in its environment, `ZEUS_SERVER_URL`, `ZEUS_OUTCOME_FILE`, `ZEUS_RECURRENCE`
    (from 1) and `ZEUS_CONTROL` (1 for a control trial).

    Args:
        command: Program and arguments.
        mode: Which recurrences run control trials.
        folder: Gets the runs' output and their outcome files.
        client: The service that the runs use.
        console: Where each try that ends has a line.
        check: Raises a `ZeusError` if the service cannot come back.

    Attributes:
        tries: What has been run.
        failed: The last tries of the recurrences that failed, or missed the target other than as
            planned controls.
        signal: The signal that ended `run`, or None.
    """

    def __init__(
        self,
        command: Sequence[str],
        mode: Mode,
        folder: Path,
        client: BSOClient,
        console: Console,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.tries: list[Try] = []
        self.failed: list[Try] = []
        self.signal: int | None = None
        self._is_urgent = False
        self._errors = 0  # in a row, with the default batch size
        self._command, self._mode = command, mode
        self._folder, self._console = folder, console
        self._client = client.without_retries(_TIMEOUT_S)
        self._check_service = check or (lambda: None)

    def run(self, recurrences: int) -> None:
        """Run until all is done, or a signal has come.

        Raises:
            ZeusError: A run has stopped the driver, or nothing can be run.
        """
        with self._handled_signals(), self._console.status("") as status:
            for number in range(1, recurrences + 1):
                for attempt in range(1, MAX_TRIES + 1):
                    status.update(f"recurrence {number} of {recurrences}, try {attempt}")
                    self._wait_for_service()
                    if self.signal is None:
                        self._try(number, attempt)
                    if self.signal is not None:
                        return
                    if self.tries[-1].result != "again":
                        break
                    self._errors = 0
                self._check(self.tries[-1])

    def log(self, each: Try) -> Path:
        """The file of a try's output."""
        return self._file(each.recurrence, each.attempt, "log")

    def _try(self, recurrence: int, attempt: int) -> None:
        """Run the command once, to its end."""
        control = self._mode == "observe" or (self._mode == "compare" and recurrence % 2 == 1)
        outcome_file = self._file(recurrence, attempt, "json")
        env = {"PYTHONUNBUFFERED": "1", **os.environ}
        env["ZEUS_SERVER_URL"] = self._client.url
        env["ZEUS_RECURRENCE"] = str(recurrence)
        env[OUTCOME_FILE] = str(outcome_file)
        env[CONTROL] = str(int(control))
        try:
            child = Child(self._command, env, self._file(recurrence, attempt, "log"))
        except OSError as error:
            raise ZeusConfigError(f"{self._command[0]} cannot be run: {error}") from error
        exit_code = self._wait_for(child)
        run = TrialRecord.read(outcome_file)
        each = Try(
            recurrence=recurrence, attempt=attempt, control=control, exit_code=exit_code, run=run
        )
        if run is not None and run.outcome is None:
            reason = f"the run's process ended ({each.outcome})"
            with suppress(ZeusError):  # else the lease ends it
                self._client.end_trial(run.trial, "interrupted", reason)
        if not self.tries:
            self._print(summary.HEADER)
        self.tries.append(each)
        style = {"done": "", "again": "dim"}.get(each.result, "bold")
        self._print(summary.line(each), style)
        if detail := summary.detail(each):
            is_usual = each.result in ("again", "done") and not (run and run.asks_for_action)
            self._print(f"        {detail}", "dim" if is_usual else "yellow")

    def _wait_for_service(self) -> None:
        """Wait until the service answers, or a signal comes."""
        told = False
        while self.signal is None and not self._client.answers():
            self._check_service()
            if not told:
                self._print(f"waiting for the service at {self._client.url}")
            told = True
            again_s = time.monotonic() + _SERVICE_POLL_S
            while self.signal is None and time.monotonic() < again_s:
                time.sleep(_POLL_S)

    def _wait_for(self, child: Child) -> int:
        """The exit status of a run; a signal ends it in order, and a second one kills it."""
        while (exit_code := child.poll()) is None:
            if self.signal is not None:
                child.kill() if self._is_urgent else child.end()
            time.sleep(_POLL_S)
        return exit_code

    def _check(self, last: Try) -> None:
        """Decide by the last try of a recurrence whether the driver must stop."""
        result, run = last.result, last.run
        if result == "failed":
            self._errors += run is not None and run.trial.batch_size == run.job.default_batch_size
        elif result != "stop":
            self._errors = 0
        why = str(last)
        if result == "again":
            why = f"all {MAX_TRIES} tries of recurrence {last.recurrence} failed"
        elif result == "failed" and self._errors >= _ERRORS_TO_STOP:
            why = f"{why}: {self._errors} errors in a row with the default batch size"
        elif result != "stop":
            if result == "failed" or (result == "missed" and not last.control):
                self.failed.append(last)
            return
        log = self.log(last)
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))  # a line may be megabytes long
            lines = file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        raise ZeusError("\n".join([f"{why}. The last lines of {log}:", *lines]))

    def _file(self, recurrence: int, attempt: int, suffix: str) -> Path:
        return self._folder.absolute() / f"{recurrence:04}-{attempt:02}.{suffix}"

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """End the run in order on a signal; kill it when another one comes.

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
