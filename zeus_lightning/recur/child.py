"""`Child`: a try's process, and all processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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

    Raises:
        OSError: The command cannot be run.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as output:
            self._process = psutil.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._kill_at: float | None = None  # once it was sent SIGTERM
        self._family: list[psutil.Process] = []
        self._orphans_signalled = False

    def poll(self) -> int | None:
        """Its exit status once it has ended, negative if a signal ended it; None before.

        After `end`, the processes that it started, such as a shell's, must also have ended; what
        has not ended in time is killed here.
        """
        exit_code: int | None = self._process.poll()
        if self._kill_at is None:
            if exit_code is not None and not 0 <= exit_code <= 128:  # a shell says 128 + N
                with suppress(ProcessLookupError, PermissionError):
                    # ranks of a killed process would keep the GPUs
                    os.killpg(self._process.pid, signal.SIGKILL)
            return exit_code
        left = [each for each in self._family if _is_alive(each)]
        if time.monotonic() >= self._kill_at:
            _send(left, signal.SIGKILL)
        elif exit_code is not None and not self._orphans_signalled:
            self._orphans_signalled = True
            _send(left, signal.SIGTERM)
        return None if left else exit_code

    def end(self) -> None:
        """Send SIGTERM, so that Lightning ends the run in order; `poll` kills it later.

        Only the process itself gets it: ranks that all get it wait for each other.
        """
        if self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_S
            with suppress(psutil.NoSuchProcess):
                self._family = [self._process, *self._process.children(recursive=True)]
                self._process.terminate()

    def kill(self) -> None:
        """Kill it and all that it has started, at the next `poll`."""
        self.end()
        self._kill_at = 0.0


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(processes: Sequence[psutil.Process], number: int) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            each.send_signal(number)
