"""One worker serves others while some wait, and what is locked holds up nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from databases import migrated_database, waiting_sessions
from service.api.wires import report
from service.conftest import application, on_sqlite
from service.db.races import SERVERS
from service.jobs import START, spec_json
from service.test_seen_from_outside import metrics
from service_fork import run_to_its_end
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S, wait_until
from zeus_service.db.jobs import lock
from zeus_service.db.session import DEADLINE_S, POOL_SIZE, transaction


def call(service: ServiceProcess, method: str, path: str, **more: Any) -> requests.Response:
    return requests.request(method, f"{service.url}{path}", timeout=LIMIT_S, **more)


def register(service: ServiceProcess, *job_ids: str) -> None:
    for job_id in job_ids:
        call(service, "POST", "/api/v1/jobs", json=spec_json(job_id=job_id)).raise_for_status()


def start(service: ServiceProcess, job_id: str) -> requests.Response:
    return call(service, "POST", f"/api/v1/jobs/{job_id}/trials", json=START)


def generation(started: requests.Response) -> str:
    assert started.status_code == 201
    known: str = started.json()["generation"]
    return known


@contextlib.contextmanager
def running(kind: str, folder: Path) -> Iterator[ServiceProcess]:
    """A service of one worker, within the context of an application on its database."""
    with (
        migrated_database(kind, folder) as url,
        application(url),
        ServiceProcess(folder, database_url=url) as service,
    ):
        yield service


@pytest.mark.parametrize("kind", SERVERS)
def test_a_locked_job_holds_up_no_others(kind: str, tmp_path: Path) -> None:
    with running(kind, tmp_path) as service, ThreadPoolExecutor(4 * POOL_SIZE) as pool:
        register(service, "job", "other")
        known = generation(start(service, "job"))

        def heartbeat() -> requests.Response:
            path = f"/api/v1/jobs/job/trials/1/heartbeat?generation={known}"
            return call(service, "POST", path, json={})

        with transaction() as session:
            lock(session, "job")
            blocked = [pool.submit(start, service, "job") for _ in range(POOL_SIZE)]
            blocked += [pool.submit(heartbeat) for _ in range(POOL_SIZE)]
            wait_until(lambda: waiting_sessions() == 1)
            for sequence in (1, 2):
                reports = f"/api/v1/jobs/other/trials/{sequence}/reports?generation="
                for method, path, body in (
                    ("GET", "/healthz", None),
                    ("GET", "/readyz", None),
                    ("GET", "/api/v1/jobs/job", None),
                    ("POST", reports + generation(start(service, "other")), report(1)),
                ):
                    assert call(service, method, path, json=body).ok, (method, path)
                assert "zeus_bso_database_up 1.0" in call(service, "GET", "/metrics").text
            assert waiting_sessions() <= 1  # none between two attempts
            assert not any(each.done() for each in blocked)
        statuses = [each.result().status_code for each in blocked]
    assert statuses == [201] * POOL_SIZE + [200] * POOL_SIZE


@pytest.mark.parametrize("kind", SERVERS)
def test_what_waits_for_a_locked_job_is_refused_at_its_deadline(kind: str, tmp_path: Path) -> None:
    waiting = 4
    with running(kind, tmp_path) as service, ThreadPoolExecutor(waiting) as pool:
        register(service, "job")
        with transaction() as session:
            lock(session, "job")
            began = time.monotonic()
            starts = [pool.submit(start, service, "job") for _ in range(waiting)]
            refused = [each.result() for each in starts]
            took_s = time.monotonic() - began
    assert DEADLINE_S - 1 < took_s < DEADLINE_S + 5
    for answer in refused:
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), answer.text
        assert answer.json()["code"] == "unavailable"
    assert "timeout" in service.log.read_text().lower()  # what the database says


def test_a_locked_sqlite_file_holds_up_nothing_but_writes(tmp_path: Path) -> None:
    names = [f"job-{n}" for n in range(40)]  # more than connections of the service
    with running("sqlite", tmp_path) as service, ThreadPoolExecutor(len(names)) as pool:
        register(service, *names)
        path = service.database_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            blocked = [pool.submit(start, service, name) for name in names]
            for _ in range(20):
                for each in ("/healthz", "/readyz", "/api/v1/jobs"):
                    assert call(service, "GET", each).ok
            assert not any(each.done() for each in blocked)
            lock.rollback()
        assert [each.result().status_code for each in blocked] == [201] * len(names)


def test_counts_outlive_workers(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with ServiceProcess(tmp_path, TMPDIR=str(temporary)) as service:
        for replaced, how in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP), 1):
            assert call(service, "GET", "/api/v1/jobs").ok
            (worker,) = service.workers()
            if how == signal.SIGHUP:
                service.signal(how)
            else:
                os.kill(worker, how)

            def booted() -> int:
                return service.log.read_text().count("Booting worker")

            wait_until(lambda count=replaced: booted() == count + 1)
            wait_until(lambda pid=worker: not psutil.pid_exists(pid))
        assert metrics(service)["zeus_bso_http_requests_total", "GET", "/api/v1/jobs", "200"] == 3
    assert list(temporary.iterdir()) == []


def test_gunicorns_own_options_are_taken_but_one_that_would_listen_unchecked(
    tmp_path: Path,
) -> None:
    env = {"GUNICORN_CMD_ARGS": "--reuse-port", "ZEUS_BSO_DATABASE_URL": f"sqlite:///{tmp_path}/x"}
    bind = f"--bind=127.0.0.1:{free_port()}"
    refused = run_to_its_end("serve", bind, folder=tmp_path, **env)
    assert refused.returncode == 1
    assert "Error: reuse_port is not supported" in refused.stderr


def in_new_process(program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert result.returncode == 0, result.stderr


@on_sqlite
def test_only_the_entry_points_of_serving_patch(database_url: str) -> None:
    check = "from gevent import monkey; assert not monkey.is_anything_patched()"
    programs = [
        f"import os; os.environ['ZEUS_BSO_DATABASE_URL'] = {database_url!r}",
        "from zeus_service.cli import main; main(['--version'], standalone_mode=False)",
        "from zeus_service.cli import main; main(['jobs'], standalone_mode=False)",
        "import zeus_service.app",
    ]
    in_new_process(f"\n{check}\n".join([*programs, ""]))


def test_sigterm_ends_a_worker_that_has_only_the_masters_handler() -> None:
    # The original calls: gevent's waitpid may miss a child that ends as soon as it was forked.
    in_new_process(
        "import os, signal; from zeus_service.serving import gunicorn\n"
        "from gevent.monkey import get_original\n"
        "fork, waitpid = get_original('os', ['fork', 'waitpid'])\n"
        "pid = fork()\n"
        "if pid == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "    gunicorn.post_fork(None, None)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(waitpid(pid, 0)[1]) == -signal.SIGTERM"
    )
