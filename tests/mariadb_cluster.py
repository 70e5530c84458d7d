"""A MariaDB server of the tests' own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pymysql
from postgres_cluster import user_of_servers
from service_process import free_port


def _program(name: str) -> str | None:
    """Distributions keep the server where only root's PATH looks."""
    path = ":".join(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"])
    return shutil.which(name) or shutil.which(name, path=path)


def is_installed() -> bool:
    """Whether the server's programs are there."""
    return bool(_program("mariadbd") and _program("mariadb-install-db"))


class MariaDbCluster:
    """A server in a temporary folder, on a free port of 127.0.0.1, within a `with`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"mysql://root@127.0.0.1:{self.port}/mysql"

    def __enter__(self) -> Self:
        install, server = _program("mariadb-install-db"), _program("mariadbd")
        assert install
        assert server
        self._folder = Path(tempfile.mkdtemp(prefix="zeus-mariadb-"))
        user = user_of_servers()
        if user:
            shutil.chown(self._folder, user["user"])
        data = ["--no-defaults", f"--datadir={self._folder / 'data'}"]
        access = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        log = self._folder / "server.log"
        with log.open("wb") as output:
            subprocess.run(
                [install, *data, *access, "--skip-name-resolve"],
                cwd=self._folder,
                stdout=output,
                stderr=output,
                check=True,
                timeout=180,
                **user,
            )
            self._process = subprocess.Popen(
                [
                    server,
                    *data,
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    f"--socket={self._folder / 'socket'}",
                    f"--tmpdir={self._folder}",
                    "--skip-name-resolve",
                    # data that nobody needs after a crash
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-flush-method=nosync",
                    "--innodb-buffer-pool-size=64M",
                ],
                cwd=self._folder,
                stdout=output,
                stderr=output,
                **user,
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
            except pymysql.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self._process.kill()
                    raise RuntimeError(f"MariaDB did not start:\n{log.read_text()}") from None
                time.sleep(0.1)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)
        shutil.rmtree(self._folder)
