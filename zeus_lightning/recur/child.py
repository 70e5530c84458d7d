"""`Child`: a try's process, and all processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

GRACE_S = 40.0
"""Seconds from SIGTERM to SIGKILL; torchrun gives its own processes 30."""


class Child:
    """A command whose output goes to a file, and that ends together with what it has started.

    Ctrl-C at the terminal does not reach it: the driver ends it.

    Args:
        command: Program and arguments.
        env: Its environment.
        log: The file for its output.
        timeout_s: Seconds from now after which it is ended; None: never.

    Attributes:
        exit_code: Its exit status, negative if a signal ended it; None while it runs.
        cut_short: Why it was ended from here; None if it was not.

    Raises:
        OSError: The command cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        timeout_s: float | None,
    ) -> None:
        with log.open("wb") as output:
            self._process = psutil.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._timeout_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._kill_at: float | None = None  # once it was sent SIGTERM
        self._family: list[psutil.Process] = []
        self._orphans_signalled = False
        self.cut_short: Literal["timeout", "signal"] | None = None
        self.exit_code: int | None = None

    def poll(self) -> bool:
        """Whether it has ended; if it takes too long, it is sent SIGTERM, and later killed."""
        self.exit_code = self._process.poll()
        now_s = time.monotonic()
        if self.exit_code is None:
            if self._kill_at is not None and now_s >= self._kill_at:
                self._signal_family(signal.SIGKILL)
            elif self._kill_at is None and self._timeout_at and now_s >= self._timeout_at:
                self.end("timeout")
            return False
        if self._kill_at is None:
            if not 0 <= self.exit_code <= 128:  # a shell says 128 + N
                self._kill_group()  # ranks of a killed process would keep the GPUs
            return True
        return self._orphans_have_ended()

    def end(self, why: Literal["timeout", "signal"]) -> None:
        """Send SIGTERM, so that Lightning ends the run in order; `poll` kills it later.

        Only the process itself gets it: ranks that all get it wait for each other.
        """
        if self._kill_at is None:
            self.cut_short, self._kill_at = why, time.monotonic() + GRACE_S
            with suppress(psutil.NoSuchProcess):
                self._family = [self._process, *self._process.children(recursive=True)]
                self._process.terminate()

    def kill(self) -> None:
        """Kill it and all that it has started, at the next `poll`."""
        self.end("signal")
        self._kill_at = 0.0

    def _orphans_have_ended(self) -> bool:
        """Whether the processes that it started, such as a shell's, have also ended."""
        left = [each for each in self._family[1:] if _is_alive(each)]
        if left and not self._orphans_signalled:
            self._orphans_signalled = True
            self._signal_family(signal.SIGTERM)
        elif left and self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal_family(signal.SIGKILL)
        return not left

    def _signal_family(self, number: int) -> None:
        for each in self._family:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                each.send_signal(number)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
