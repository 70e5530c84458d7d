"""`Child`: a try's process, with those that it starts."""

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
    """A process that may be ended together with those that it has started.

    Args:
        process: The process; `launch` starts one.
        timeout_s: Seconds from now after which it is ended; None: never.
    """

    def __init__(self, process: psutil.Process | None, timeout_s: float | None = None) -> None:
        self._process = process
        self._timeout_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._kill_at: float | None = None  # once it has been sent SIGTERM
        self._family: list[psutil.Process] = []
        self._orphans_signalled = False
        self.cut_short: Literal["timeout", "signal"] | None = None
        self.exit_code: int | None = None

    @classmethod
    def launch(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        workdir: Path,
        log: Path,
        timeout_s: float | None,
    ) -> Child:
        """Start a command whose output goes to a file; an OSError if there is no such command.

        Ctrl-C at the terminal does not reach it: the driver ends it.
        """
        with log.open("wb") as output:
            process = psutil.Popen(
                command,
                env=env,
                cwd=workdir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, timeout_s)

    @classmethod
    def adopt(cls, pid: int, created: float, timeout_s: float | None) -> Child:
        """Take over the process of a driver that has died; its exit status is not to be had."""
        return cls(find_process(pid, created), timeout_s)

    @property
    def identity(self) -> tuple[int, float]:
        """Process id, and when the process was created: ids are used again."""
        assert self._process is not None
        return identity(self._process)

    def poll(self) -> bool:
        """Whether it has ended; one that takes too long is sent SIGTERM, then killed."""
        if self._leads():
            now_s = time.monotonic()
            if self._kill_at is not None and now_s >= self._kill_at:
                self._signal_family(signal.SIGKILL)
            elif self._kill_at is None and self._timeout_at and now_s >= self._timeout_at:
                self.end("timeout")
            return False
        if self._kill_at is None:
            if self.exit_code is not None and not 0 <= self.exit_code <= 128:  # 128 + N: by a shell
                self._kill_group()  # ranks of a process that was killed would keep the GPUs
            return True
        return self._orphans_have_ended()

    def end(self, why: Literal["timeout", "signal"]) -> None:
        """Send SIGTERM, for Lightning to end the run in order; `poll` kills it later.

        Only the process itself gets it: ranks that all get it wait for each other.
        """
        if self._kill_at is None:
            self.cut_short, self._kill_at = why, time.monotonic() + GRACE_S
            if self._process is not None:
                with suppress(psutil.NoSuchProcess):
                    self._family = [self._process, *self._process.children(recursive=True)]
                    self._process.terminate()

    def kill(self) -> None:
        """Kill it with all that it has started, if it still runs."""
        self.end("signal")
        self._kill_at = 0.0

    def _leads(self) -> bool:
        """Whether the process itself runs."""
        if isinstance(self._process, psutil.Popen):
            self.exit_code = self._process.poll()
            return self.exit_code is None
        return self._process is not None and _is_alive(self._process)

    def _orphans_have_ended(self) -> bool:
        """Whether what the process had started has ended, too, such as under a shell's script."""
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
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def find_process(pid: int, created: float) -> psutil.Process | None:
    """Return the process of an `identity`; None if it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if _created(process) == created and _is_alive(process):
            return process
    return None


def identity(process: psutil.Process) -> tuple[int, float]:
    """Process id, and when the process was created: ids are used again."""
    return process.pid, _created(process)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; this reaps one that this process has started."""
    if isinstance(process, psutil.Popen):
        return process.poll() is not None
    return not _is_alive(process)


def _created(process: psutil.Process) -> float:
    """When a process was created: on Linux in ticks since boot, which no clock change affects."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text(errors="replace")
        return float(fields.rpartition(")")[2].split()[19])  # proc(5): starttime
    except (OSError, IndexError):
        return float(process.create_time())


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
