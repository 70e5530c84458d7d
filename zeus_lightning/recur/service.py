"""`OwnService`: a service for the runs, which ends with the driver.

`python -m zeus_lightning.recur.service SECONDS COMMAND...` is the process between the driver and
its own service. A pipe from the driver is its standard input: it closes however the driver ends,
even by SIGKILL, and the service is ended then.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Self

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError, ZeusError

_START_S = 60.0
_END_S = 10.0
"""Seconds from SIGINT to SIGKILL."""

_TIMEOUT_S = 2.0


class OwnService:
    """`zeus-service serve` on loopback, until the block is left or this process ends.

    Args:
        database_url: Such as `sqlite:///FILE`.
        log: The file for its output.
        port: Its port; 0 for any free one.
    """

    def __init__(self, database_url: str, log: Path, port: int = 0) -> None:
        if find_spec("zeus_service") is None:
            raise ZeusConfigError("zeus-service is not installed; run `pip install ./service`")
        with socket.create_server(("127.0.0.1", port)) as probe:
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self._database_url = database_url
        self._log = log

    def __enter__(self) -> Self:
        serve = ["-m", "zeus_service", "serve", f"--bind={self.url.removeprefix('http://')}"]
        between = [sys.executable, "-m", __name__, str(_END_S)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*between, sys.executable, *serve, "--workers=1"],
                env={**os.environ, "ZEUS_BSO_DATABASE_URL": self._database_url},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the runs first
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def check(self) -> None:
        """Raise a `ZeusError` if the service has ended."""
        if self._process.poll() is not None:
            raise ZeusError(f"the service exited; {self._log_end()}")

    def _wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + _START_S
        client = BSOClient(self.url, timeout_s=_TIMEOUT_S, retry=False)
        while not client.answers():
            self.check()
            if time.monotonic() > deadline_s:
                raise ZeusError(f"the service did not start; {self._log_end()}")
            time.sleep(0.05)

    def _log_end(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the last lines of {self._log}:\n" + "\n".join(lines[-5:])


def _run_until_stdin_closes(grace_s: float, command: Sequence[str]) -> int:
    """Run a command; when stdin closes, send it SIGINT and, `grace_s` later, SIGKILL.

    SIGINT ends gunicorn without waiting for idle connections, such as a browser's. SIGKILL goes to
    the whole process group, which this process leads: gunicorn's workers are in it.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def end() -> None:
        os.read(sys.stdin.fileno(), 1)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(0, signal.SIGKILL)

    Thread(target=end, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(_run_until_stdin_closes(float(sys.argv[1]), sys.argv[2:]))
