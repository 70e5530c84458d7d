"""`zeus-service` as a fork of a process that has imported it: half the CPU time of a start."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock

from forked import set_environment
from waiting import LIMIT_S

CONTEXT = get_context("forkserver")

_server = forkserver.ForkServer()  # not that of processes that train, which has imported torch
# Gunicorn notes the current folder at its import; the fork imports it, and what follows its patch.
# That includes psycopg and prometheus-client, which these import no part of.
_server.set_forkserver_preload(["zeus_service.cli", "numpy.random", "apiflask"])


class ServiceFork(Popen):
    """A process of its own session that calls `zeus-service`'s main function.

    Args:
        arguments: Those of the command, without its name.
        env: All its variables.
        folder: Where it runs.
        log: The file to which its output is appended.
    """

    def __init__(
        self, arguments: Sequence[str], env: dict[str, str], folder: Path, log: Path
    ) -> None:
        super().__init__(CONTEXT.Process(target=_main, args=(arguments, env, folder, log)))

    def _launch(self, process: Any) -> None:
        with mock.patch.object(
            forkserver, "connect_to_new_process", _server.connect_to_new_process
        ):
            super()._launch(process)

    def send_signal(self, signal_number: int) -> None:
        """Do what `subprocess.Popen` does."""
        if self.poll() is None:
            os.kill(self.pid, signal_number)


def run_to_its_end(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; all its output is in `stderr`."""
    with NamedTemporaryFile() as log:
        process = ServiceFork(arguments, os.environ | env, folder, Path(log.name))
        try:
            status = process.wait(timeout=LIMIT_S)
        finally:
            process.send_signal(signal.SIGKILL)  # if it still runs
        assert status is not None
        return subprocess.CompletedProcess(arguments, status, "", log.read().decode())


def _main(arguments: Sequence[str], env: dict[str, str], folder: Path, log: Path) -> None:
    from zeus_service.cli import main

    os.setsid()
    os.chdir(folder)
    tests = Path(__file__).parent
    sys.path = [each for each in sys.path if not Path(each).is_relative_to(tests)]
    set_environment(env)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    sys.argv = ["zeus-service", *arguments]
    try:
        main(prog_name="zeus-service")
    finally:
        atexit._run_exitfuncs()  # multiprocessing calls none of them
