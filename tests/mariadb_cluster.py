"""A MariaDB server of the tests' own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pymysql
from postgres_cluster import user_of_servers
from running import Running
from service_process import free_port
from waiting import LIMIT_S, wait_until


def _program(name: str) -> str | None:
    """Distributions keep the server where only root's PATH looks."""
    path = ":".join(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"])
    return shutil.which(name) or shutil.which(name, path=path)


def is_installed() -> bool:
    """Whether the server's programs are there."""
    return bool(_program("mariadbd") and _program("mariadb-install-db"))


class MariaDbCluster(Running):
    """A server in a temporary folder, on a free port of 127.0.0.1, within a `with`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"mysql://root@127.0.0.1:{self.port}/mysql"

    def start(self) -> None:
        install, server = _program("mariadb-install-db"), _program("mariadbd")
        assert install
        assert server
        self._folder = Path(tempfile.mkdtemp(prefix="zeus-mariadb-"))
        user = user_of_servers()
        if user:
            shutil.chown(self._folder, user["user"])
        # As it starts, a server deletes the temporary tables of others that share its tmpdir.
        data = [
            "--no-defaults",
            f"--datadir={self._folder / 'data'}",
            f"--tmpdir={self._folder}",
        ]
        access = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        log = self._folder / "server.log"
        with log.open("wb") as output:
            subprocess.run(
                [install, *data, *access, "--skip-name-resolve"],
                cwd=self._folder,
                stdout=output,
                stderr=output,
                check=True,
                timeout=LIMIT_S,
                **user,
            )
            self._process = subprocess.Popen(
                [
                    server,
                    *data,
                    "--bind-address=127.0.0.1",
                    f"--port={self.port}",
                    f"--socket={self._folder / 'socket'}",
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
        try:
            wait_until(self._answers)
        except AssertionError:
            self._process.kill()
            raise RuntimeError(f"MariaDB did not start:\n{log.read_text()}") from None

    def _answers(self) -> bool:
        assert self._process.poll() is None
        with suppress(pymysql.OperationalError):
            pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
            return True
        return False

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=LIMIT_S)
        shutil.rmtree(self._folder)
