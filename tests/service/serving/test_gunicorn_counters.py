"""Counters outlive the workers that counted, and the folder of their files outlives no server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import requests
from service.test_seen_from_outside import metrics
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

ASKED = ("zeus_bso_http_requests_total", "GET", "/api/v1/jobs", "200")


def ask(service: ServiceProcess) -> None:
    assert requests.get(f"{service.url}/api/v1/jobs", timeout=LIMIT_S).ok


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder in which the service creates that of its files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("gunicorn", [False, True], ids=["serve", "gunicorn"])
def test_counts_outlive_workers(tmp_path: Path, temporary: Path, gunicorn: bool) -> None:
    with ServiceProcess(tmp_path, gunicorn=gunicorn, TMPDIR=str(temporary)) as service:
        for replaced, how in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP), 1):
            ask(service)
            (worker,) = service.workers()
            if how == signal.SIGHUP:
                service.signal(how)
            else:
                os.kill(worker, how)

            def booted() -> int:
                return service.log.read_text().count("Booting worker")

            wait_until(lambda count=replaced: booted() == count + 1)
            wait_until(lambda pid=worker: not psutil.pid_exists(pid))
        assert metrics(service)[ASKED] == 3
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_server_is_deleted_by_the_next(
    tmp_path: Path, temporary: Path
) -> None:
    def folders() -> set[Path]:
        return set(temporary.glob("zeus-service-metrics-*"))

    (tmp_path / "other").mkdir()
    env = {"TMPDIR": str(temporary)}
    with ServiceProcess(tmp_path / "other", **env) as other:
        (of_other,) = folders()
        killed = ServiceProcess(tmp_path, **env)
        killed.start()
        workers = killed.workers()
        (of_killed,) = folders() - {of_other}
        killed.kill()
        wait_until(lambda: not any(map(psutil.pid_exists, workers)))
        assert folders() == {of_other, of_killed}
        with ServiceProcess(tmp_path, **env):
            assert of_killed not in folders()
            assert of_other in folders()
            ask(other)
            assert metrics(other)[ASKED] == 1
    assert folders() == set()
