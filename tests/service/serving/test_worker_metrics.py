"""Counters outlive the workers that counted; the files do not add up."""

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
from zeus_service.serving.worker_metrics import PREFIX

ASKED = ("zeus_bso_http_requests_total", "GET", "/api/v1/jobs", "200")


def ask(service: ServiceProcess) -> None:
    assert requests.get(f"{service.url}/api/v1/jobs", timeout=LIMIT_S).ok


def booted(service: ServiceProcess) -> int:
    return service.log.read_text().count("Booting worker")


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder in which the service creates that of its files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("gunicorn", [False, True], ids=["serve", "gunicorn"])
@pytest.mark.parametrize("how", ["killed", "ended", "reloaded"])
def test_a_worker_takes_over_the_files_of_one_that_has_ended(
    tmp_path: Path, temporary: Path, gunicorn: bool, how: str
) -> None:
    with ServiceProcess(tmp_path, gunicorn=gunicorn, TMPDIR=str(temporary)) as service:
        for replaced in range(3):
            ask(service)
            (worker,) = service.workers()
            if how == "reloaded":  # the new one starts beside the old one
                service.signal(signal.SIGHUP)
            else:
                os.kill(worker, signal.SIGKILL if how == "killed" else signal.SIGTERM)
            wait_until(lambda count=replaced: booted(service) == count + 2)
            wait_until(lambda pid=worker: not psutil.pid_exists(pid))
        assert metrics(service)[ASKED] == 3
        files = {path.name for path in temporary.glob(f"{PREFIX}*/*.db")}
    numbers = {0, 1, 2} if how == "reloaded" else {0, 1}
    kinds = ("counter", "histogram")
    assert files <= {f"{kind}_{number}.db" for kind in kinds for number in numbers}
    assert list(temporary.iterdir()) == []


def test_the_folder_of_a_killed_server_is_deleted_by_the_next(
    tmp_path: Path, temporary: Path
) -> None:
    def folders() -> set[Path]:
        return set(temporary.glob(f"{PREFIX}*"))

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
