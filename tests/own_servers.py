"""Database servers of a test run's own: one of each kind, shared by all of its processes.

The first test that needs a server starts it in a process beside the run (this file is its program),
which ends it when the run is over, however the run ended: it waits for a lock that the run holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import mariadb_cluster
import postgres_cluster
import pytest

VARIABLE = "ZEUS_TEST_RUN"
"""Names the folder of the run, for the processes of pytest-xdist."""

CLUSTERS = {
    "postgresql": postgres_cluster.PostgresCluster,
    "mysql": mariadb_cluster.MariaDbCluster,
}


def is_installed(name: str) -> bool:
    """Whether a server of this kind could be started."""
    if name == "postgresql":
        return postgres_cluster.binaries() is not None
    return mariadb_cluster.is_installed()


def url_of(name: str) -> str:
    """The URL of the run's server of a kind; it is started if no test has needed it before."""
    folder = Path(os.environ[VARIABLE])
    url = folder / f"{name}.url"
    with _locked(folder / f"{name}.lock"):
        if not url.exists():
            _start(name, folder)
    return url.read_text()


def _start(name: str, folder: Path) -> None:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, name, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the run, and that ends the server
        )
    while not (folder / f"{name}.url").exists():
        if process.poll() is not None:
            reason = (folder / f"{name}.log").read_text()
            raise RuntimeError(f"a {name} server of the tests' own did not start:\n{reason}")
        time.sleep(0.05)


def _locked(path: Path) -> TextIO:
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


class OwnServers:
    """A pytest plugin of the process that starts the run: not of pytest-xdist's workers."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="zeus-tests-"))
        os.environ[VARIABLE] = str(self._folder)
        self._lock = _locked(self._folder / "run.lock")

    def pytest_unconfigure(self) -> None:
        """End the servers."""
        self._lock.close()
        deadline = time.monotonic() + 60
        while list(self._folder.glob("*.url")) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self._folder)
        del os.environ[VARIABLE]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OwnServers())


def main(name: str, folder: Path) -> None:
    """Run a server until the run of the tests is over."""
    url = folder / f"{name}.url"
    with CLUSTERS[name]() as cluster:
        written = url.with_suffix(".new")
        written.write_text(cluster.url)
        written.rename(url)
        _locked(folder / "run.lock")
    url.unlink(missing_ok=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(sys.argv[1], Path(sys.argv[2]))
