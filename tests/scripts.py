"""Run a Python script without a new interpreter, which takes seconds to import Lightning."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from forked import CONTEXT, set_environment
from waiting import LIMIT_S, wait_until


def run_here(script: Path, *arguments: object) -> None:
    """Run it in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        runpy.run_path(str(script), run_name="__main__")


class ScriptProcess:
    """A script in a process that has imported Lightning, the leader of its group.

    It differs from `python SCRIPT ARGUMENTS` in its end: no function of `atexit` is called.

    Args:
        output: A file for what it prints; by default where this process does.
        errors: One for what it writes to stderr; by default `output`.
        folder: Where it runs.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: Path | None = None,
        errors: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        self._arguments = [str(script), *arguments]
        files = {1: output, 2: errors or output}
        for path in filter(None, files.values()):
            path.write_bytes(b"")
        self._process = CONTEXT.Process(
            target=_run, args=(self._arguments, dict(environment), files, folder or Path.cwd())
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Wait for its exit status; a signal's is negative, as `subprocess` has it.

        After the timeout, its group is killed: pytest would wait for it as it ends.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):  # it does not lead a group yet
                os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(self._arguments, timeout)
        return self._process.exitcode


def wait_for_groups(groups: Collection[int]) -> None:
    """Wait until no process of these groups runs any more.

    A node's first rank does not wait for its others, which may still write what they saw.
    """

    def left() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                is_zombie = process.status() == psutil.STATUS_ZOMBIE
                if os.getpgid(process.pid) in groups and not is_zombie:
                    found.append(process)
        return found

    wait_until(lambda: not left(), lambda: f"still running: {left()}")


def _run(
    arguments: list[str], environment: dict[str, str], files: dict[int, Path | None], folder: Path
) -> None:
    os.setsid()
    os.chdir(folder)
    for number, path in files.items():
        if path is not None:
            with path.open("ab") as file:
                os.dup2(file.fileno(), number)
    set_environment(environment)
    for each in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        for library in Path(each).glob("libnvidia-ml.so.*"):
            ctypes.CDLL(str(library))  # the loader reads the variable when a program starts
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")
