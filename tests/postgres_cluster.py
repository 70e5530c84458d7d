"""A PostgreSQL server of the tests' own, which a test may stop and start."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from running import Running
from service_process import free_port
from waiting import LIMIT_S


def binaries() -> Path | None:
    """Where the server's programs are: of the newest release, where several are installed."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(found, key=lambda path: float(path.parts[-3]), default=None)
    initdb = newest or shutil.which("initdb")
    return Path(initdb).parent if initdb else None


def user_of_servers() -> dict[str, Any]:
    """Arguments of `subprocess`: run as this user, or as `nobody` instead of root.

    PostgreSQL refuses to run as root, and MariaDB as root wants to be told so.
    """
    return {"user": "nobody", "extra_groups": []} if os.getuid() == 0 else {}


class PostgresCluster(Running):
    """A cluster in a temporary folder, on a free port of 127.0.0.1, within a `with`."""

    def __init__(self) -> None:
        programs = binaries()
        assert programs is not None
        self._programs = programs
        self._as = user_of_servers()
        self._folder = Path(tempfile.mkdtemp(prefix="zeus-postgres-"))
        if self._as:
            shutil.chown(self._folder, self._as["user"])
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections; the first time it is created."""
        if not (self._folder / "data").exists():
            self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 300,
            # a crash of the machine may lose all; one of the server loses nothing
            "fsync": "off",
            "full_page_writes": "off",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "start", "-w", "-t", "120", "-o", options, "-l", "server.log")

    def stop(self, mode: str) -> None:
        """Stop it: `fast` ends its connections first, `immediate` is a crash."""
        self._run("pg_ctl", "stop", "-w", "-t", "120", "-m", mode)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let its processes hang for a while; their connections stay open."""
        pid = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        server = psutil.Process(pid)
        server.suspend()  # it starts no further processes
        processes = [server, *server.children()]
        for each in processes:
            each.suspend()
        try:
            yield
        finally:
            for each in processes:
                each.resume()

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments, "-D", self._folder / "data"]
        result = subprocess.run(
            command,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,  # the server would keep a pipe open
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            check=False,
            timeout=LIMIT_S,
            **self._as,
        )
        assert result.returncode == 0, (program, arguments, result.stderr)

    def end(self) -> None:
        if (self._folder / "data" / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._folder)
