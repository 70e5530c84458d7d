"""A hangup has the service read its configuration anew; one that would not start is refused."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import requests
from databases import DATABASES, new_database
from service_process import ServiceProcess
from sqlalchemy import make_url
from waiting import LIMIT_S, wait_until
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade


def hang_up(service: ServiceProcess) -> None:
    """Send SIGHUP, and wait until the workers are others."""
    before = set(service.workers())
    service.signal(signal.SIGHUP)
    wait_until(
        lambda: service.workers() and before.isdisjoint(service.workers()), service.log.read_text
    )


def test_the_log_has_the_level_that_a_hangup_reads(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path) as service:
        (tmp_path / ".env").write_text("ZEUS_BSO_LOG_LEVEL=ERROR\n")
        hang_up(service)
        requests.get(f"{service.url}/healthz?after", timeout=LIMIT_S)
        seen = service.log.read_text()
        (tmp_path / ".env").write_text("")
        hang_up(service)
        requests.get(f"{service.url}/healthz", timeout=LIMIT_S)
        wait_until(lambda: "route=/healthz" in service.log.read_text()[len(seen) :])
    assert "route=/healthz" not in seen.rpartition("Handling signal: hup")[2]


def connections(pid: int, port: int | None) -> int:
    """Count the connections that a process has to a database's server."""
    found = psutil.Process(pid).net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in found)


@pytest.mark.parametrize("kind", DATABASES[1:])
def test_a_database_that_a_start_would_refuse_changes_nothing(kind: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"ZEUS_BSO_DATABASE_URL=sqlite:///{tmp_path}/first.sqlite3\n")
    with (
        new_database(kind, tmp_path) as empty,
        ServiceProcess(tmp_path, ZEUS_BSO_DATABASE_URL="") as service,
    ):
        (tmp_path / ".env").write_text(f"ZEUS_BSO_DATABASE_URL={empty}\n")
        port = make_url(empty).port
        hang_up(service)
        assert "the configuration stays as it was: the database" in service.log.read_text()
        assert requests.get(f"{service.url}/readyz", timeout=LIMIT_S).ok
        master = psutil.Process(service.workers()[0]).ppid()
        assert connections(master, port) == 0
        upgrade(create_app(Config(database_url=empty)))
        hang_up(service)
        assert requests.get(f"{service.url}/readyz", timeout=LIMIT_S).ok
        (worker,) = service.workers()
        assert connections(worker, port) == 1
        assert connections(master, port) == 0
