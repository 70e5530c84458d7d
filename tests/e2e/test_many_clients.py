"""Many clients and several workers, while processes are killed: nothing is lost."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from databases import DATABASES, migrated_database
from service.conftest import application
from service.jobs import HARDWARE, register
from service_process import ServiceProcess
from sqlalchemy import select
from waiting import wait_until
from zeus_service import maintenance
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, Trial
from zeus_service.db.tables import Report as StoredReport

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceUnavailable
from zeus_lightning.messages import Hardware, Report

CLIENTS, TRIALS_EACH, REPORTS_EACH, WORKERS, KILLS = 32, 2, 2, 4, 8


@dataclass
class Acknowledged:
    """What clients were told has been done."""

    trials: list[tuple[str, int]] = field(default_factory=list)
    reports: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Costs by job, trial and sequence."""


def figures(client: int, sequence: int) -> dict[str, Any]:
    """A report; the last one reaches the target."""
    return {
        "sequence": sequence,
        "epoch": sequence,
        "time_s": 1.0 * sequence,
        "energy_j": 100.0 * sequence + client,
        "metric": sequence / REPORTS_EACH,
    }


def with_retry(port: int, job_id: str, number: int, done: Acknowledged) -> None:
    """The real client; like the callback, it sends again later what nobody took."""
    client = BSOClient(f"http://127.0.0.1:{port}", timeout_s=60)
    hardware = Hardware(**asdict(HARDWARE))

    def until_it_is_taken(call: Callable[[], Any]) -> Any:
        taken: list[Any] = []

        def try_it() -> bool:
            with suppress(ZeusServiceUnavailable):
                taken.append(call())
            return bool(taken)

        wait_until(try_it)
        return taken[0]

    for turn in range(TRIALS_EACH):
        key = f"{job_id}-{number}-{turn}"
        trial = until_it_is_taken(lambda key=key: client.start_trial(job_id, key, hardware))
        done.trials.append((job_id, trial.trial_number))
        for sequence in range(1, REPORTS_EACH + 1):
            report = Report(**figures(number, sequence))
            answer = until_it_is_taken(
                lambda trial=trial, report=report: client.report(trial, report)
            )
            done.reports[job_id, trial.trial_number, sequence] = answer.cost


def kill_at_random(service: ServiceProcess, done: Acknowledged, finished: Event) -> int:
    """SIGKILL for a worker, and now and then for the whole service; returns how often.

    It goes by what is done, not by time: however slow the machine, there is an end. All kills
    are due in the first half of the reports, so that the clients are not done before the last one.
    """
    chance = random.Random(0)
    moments = sorted(chance.sample(range(CLIENTS * TRIALS_EACH * REPORTS_EACH // 2), KILLS))
    for number, moment in enumerate(moments, 1):
        while len(done.reports) < moment:
            if finished.wait(0.005):
                return number - 1
        if number % 4 == 0:
            service.kill()
            service.start()
        elif workers := service.workers():
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
    return KILLS


def check(job_ids: list[str], done: Acknowledged) -> None:
    """Compare what the database holds with what clients were told."""
    assert len(done.trials) == CLIENTS * TRIALS_EACH
    for job_id in job_ids:
        told = [number for job, number in done.trials if job == job_id]
        with transaction(read_only=True) as session:

            def rows(table: Any, job_id: str = job_id) -> list[Any]:
                query = select(table).join(Job, Job.key == table.job_key)
                return list(session.scalars(query.where(Job.job_id == job_id)))

            trials, reports = rows(Trial), rows(StoredReport)
        assert sorted(told) == sorted(row.trial_number for row in trials)
        assert sorted(told) == list(range(1, len(told) + 1))
        assert {row.outcome for row in trials} == {"converged"}
        stored = {(job_id, row.trial_number, row.sequence): row.cost for row in reports}
        assert stored == {key: cost for key, cost in done.reports.items() if key[0] == job_id}
        happened = [seq for row in trials for seq in (row.started_seq, row.ended_seq)]
        assert sorted(happened) == list(range(1, 2 * len(told) + 1))
        assert maintenance.rebuild(job_id), "the replay of the trials is not the stored state"


@pytest.mark.parametrize("kind", DATABASES)
def test_many_clients_lose_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "urllib3.connectionpool")  # each retry is a warning
    job_count = CLIENTS if kind == "postgresql" else 1
    job_ids = [f"job-{number}" for number in range(job_count)]
    done, finished = Acknowledged(), Event()
    with migrated_database(kind, tmp_path) as url, application(url):
        for job_id in job_ids:
            register(job_id=job_id, beta_knob=None)
        with (
            ServiceProcess(tmp_path, database_url=url, workers=WORKERS) as service,
            ThreadPoolExecutor(CLIENTS + 1) as pool,
        ):
            clients = [
                pool.submit(with_retry, service.port, job_ids[number % job_count], number, done)
                for number in range(CLIENTS)
            ]
            killer = pool.submit(kill_at_random, service, done, finished)
            try:
                for future in clients:
                    future.result()
            finally:
                finished.set()
            assert killer.result() == KILLS
        check(job_ids, done)
