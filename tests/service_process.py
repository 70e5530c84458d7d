"""The real service under real gunicorn, for tests that need one."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import requests
from running import Running
from service_fork import ServiceFork
from waiting import LIMIT_S, wait_until

BIN = Path(sys.executable).parent
GUNICORN = (str(BIN / "gunicorn"), "--config=python:zeus_service.serving.gunicorn")

PORTS = range(15_000, 32_000)
"""Below the ports that Linux gives to clients: one of those might take a server's while it is
restarted, and a client that calls a server that is away might even be connected to itself."""


def free_port() -> int:
    """A port nobody listens on."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = random.SystemRandom().choice(PORTS)
            probe.bind(("127.0.0.1", port))
            return port


class ServiceProcess(Running):
    """`zeus-service serve` on a free port.

    `database_url` names its database, by default an SQLite file in `folder`. `program` is the
    `zeus-service` to run, by default a fork of one that is imported already; `gunicorn` runs
    gunicorn itself with the service's configuration. `application` replaces the service's own
    application. Its output goes to `folder/service.log`. It runs within a `with`, at whose end it
    need not wait for its clients.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database_url: str | None = None,
        workers: int = 1,
        program: Path | None = None,
        gunicorn: bool = False,
        application: str = "",
        **env: str,
    ) -> None:
        self.database_url = database_url or f"sqlite:///{folder / 'service.sqlite3'}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "service.log"
        self._forked = not (gunicorn or program)
        self._command = [
            *(GUNICORN if gunicorn else (str(program), "serve")),
            f"--bind=127.0.0.1:{self.port}",
            f"--workers={workers}",
            *([application] if application else []),
        ]
        self._env = {**os.environ, "ZEUS_BSO_DATABASE_URL": self.database_url, **env}
        self._process: subprocess.Popen[bytes] | ServiceFork | None = None

    def bind_to(self, host: str) -> None:
        """Listen there, from the next start on."""
        self._command = [
            f"--bind={host}:{self.port}" if each.startswith("--bind=") else each
            for each in self._command
        ]

    def signal(self, signal_number: int) -> None:
        """Send a signal to the process that holds the workers."""
        assert self._process is not None
        self._process.send_signal(signal_number)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = self._forked_process() if self._forked else self._new_process()
        try:
            wait_until(self._answers)
        except AssertionError:
            self.kill()
            raise RuntimeError(f"the service did not start:\n{self.log.read_text()}") from None

    def _forked_process(self) -> ServiceFork:
        return ServiceFork(self._command[1:], self._env, self.log.parent, self.log)

    def _new_process(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._env,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None
        with suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(f"{self.url}/healthz", timeout=LIMIT_S).ok
        time.sleep(0.05)  # a request takes from the service the time in which it starts
        return False

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        if self._process is None:
            return []
        try:
            return [child.pid for child in psutil.Process(self._process.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL for it and its workers."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as an operator would; the exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, signal_number: int) -> int:
        if self._process is None:
            return 0
        if signal_number == signal.SIGKILL:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(self._process.pid, signal_number)
        else:
            self._process.send_signal(signal_number)
        status = self._process.wait(timeout=LIMIT_S)
        assert status is not None  # a fork's `wait` raises nothing at its limit
        self._process = None
        wait_until(self._is_free)  # workers that were killed may end later than their master
        return status

    def _is_free(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0

    def end(self) -> None:
        """SIGQUIT: without waiting for clients that keep their connections open."""
        self._end(signal.SIGQUIT)
