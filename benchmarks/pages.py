"""How long the pages take on a large service: 10,000 jobs, and one job with a long history.

    ZEUS_TEST_POSTGRES_URL=postgresql://postgres@127.0.0.1/postgres python benchmarks/pages.py
    python benchmarks/pages.py --server ''     # SQLite

Each page and each of its requests is to take at most 500 ms, and a worker's memory is to stay
bounded. The last column is the worker's CPU time for a poll of what has not changed: an open page
polls itself, and the goal is at most 5 ms. These are measurements to read, not tests.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import requests
import sqlalchemy as sa
from long_job import add_history
from rich.console import Console
from rich.table import Table
from service_load import HARDWARE, HERE, JOB, Service, register, report_on, service
from zeus_service.config import Config
from zeus_service.db.tables import Era, Job, Trial

LONG = "a-long-job"
FIGURES = ("valley", "costs", "regret", "saved", "power")
POLLS = 50
"""Requests whose CPU time is averaged: the clock of a process is coarse."""


def main() -> None:
    """Fill a service, measure its pages, and print a table."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--server", default=os.environ.get("ZEUS_TEST_POSTGRES_URL"))
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--reports", type=int, default=10, help="of each trial")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(service(HERE, given.server or None, 0.0, folder, 1))
        url = f"http://127.0.0.1:{running.port}"
        _fill(url, running.database_url, given.jobs, given.trials, given.reports)
        Console(width=100).print(_table(url, running, given.rounds, given.trials))


def _fill(url: str, database_url: str, jobs: int, trials: int, reports: int) -> None:
    """Register a job, let it have a few trials, and multiply the job and its trials."""
    body = {**JOB, "job_id": LONG, "beta_knob": None}
    requests.post(f"{url}/api/v1/jobs", json=body, timeout=60).raise_for_status()
    path = f"{url}/api/v1/jobs/{LONG}/trials"
    for number in range(1, 11):
        started = requests.post(path, json={"hardware": HARDWARE}, timeout=60).json()
        report = {"sequence": 1, "epoch": 1, "time_s": 9.0, "energy_j": 900.0, "metric": 0.95}
        answer = requests.post(
            f"{path}/{number}/reports?generation={started['generation']}", json=report, timeout=60
        )
        answer.raise_for_status()
    engine = sa.create_engine(Config(database_url=database_url).database_url)
    with engine.begin() as connection:
        add_history(connection, LONG, trials, reports)
        _multiply(connection, jobs)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE" if engine.dialect.name != "mysql" else "SELECT 1")
    engine.dispose()


def _multiply(connection: sa.Connection, count: int) -> None:
    """Copy the job's row, its eras, and its first trials for each copy."""
    jobs, trials, eras = Job.__table__, Trial.__table__, Era.__table__
    job = connection.execute(sa.select(jobs).where(jobs.c.job_id == LONG)).one()._mapping
    first = sa.and_(trials.c.job_key == job["key"], trials.c.trial_number <= 24)
    few = connection.execute(sa.select(trials).where(first)).mappings().all()
    own = sa.select(eras).where(eras.c.job_key == job["key"])
    known = connection.execute(own).mappings().all()
    now = time.time()
    for start in range(1, count, 1000):
        keys = [job["key"] + number for number in range(start, min(start + 1000, count))]
        rows = [
            {**job, "key": key, "job_id": f"job-{key:06}", "trials": 24, "updated_at": now - key}
            for key in keys
        ]
        connection.execute(sa.insert(jobs), rows)
        copies = [{**row, "job_key": key} for key in keys for row in known]
        connection.execute(sa.insert(eras), copies)
        copies = [
            {**row, "job_key": key, "idempotency_key": None} for key in keys[:50] for row in few
        ]
        connection.execute(sa.insert(trials), copies)


def _requests(trials: int) -> Iterator[str]:
    yield from ("/", "/savings")
    yield from ("/?sort=saved&page=200", "/?q=job-0012", "/?state=settled&sort=job")
    path = f"/job/{LONG}"
    yield path
    yield f"{path}/figures"
    yield f"{path}?outcome=errored"  # there is none: all trials are read
    yield f"{path}?outcome=lost&batch_size=64&upto={trials // 2}"
    yield f"{path}/trial/{trials // 2}"
    yield f"{path}/trial/{trials // 2}/figures"


def _table(url: str, running: Service, rounds: int, trials: int) -> Table:
    (worker,) = running.arbiter.children()
    session = requests.Session()
    (job_id,) = register(running.port)
    report_on(running.port, job_id, 600)  # what the pages add is asked, not what any worker takes
    before = worker.memory_info().rss
    table = Table(title=f"pages, with {trials:,} trials")
    for name in ("request", "median ms", "worst ms", "kB", "unchanged: CPU ms"):
        table.add_column(name, justify="left" if name == "request" else "right")
    for path in _requests(trials):
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            answer = session.get(f"{url}{path}", timeout=60)
            times.append(1000 * (time.perf_counter() - began))
            answer.raise_for_status()
        figures = f"{statistics.median(times):.0f}", f"{max(times):.0f}"
        tag = {"If-None-Match": answer.headers["ETag"]}
        cpu_s = _cpu_s(worker)
        polls = [session.get(f"{url}{path}", headers=tag, timeout=60) for _ in range(POLLS)]
        cpu_ms = 1000 * (_cpu_s(worker) - cpu_s) / POLLS
        unchanged = f"{cpu_ms:.1f}" if all(poll.status_code == 304 for poll in polls) else "changed"
        table.add_row(path, *figures, f"{len(answer.content) / 1000:.0f}", unchanged)
    began, size = time.perf_counter(), 0
    with session.get(f"{url}/job/{LONG}/trials.csv", stream=True, timeout=600) as answer:
        for chunk in answer.iter_content(65536):
            size += len(chunk)
    table.add_row(
        "CSV, streamed", f"{1000 * (time.perf_counter() - began):.0f}", "", f"{size // 1000}"
    )
    grown = (worker.memory_info().rss - before) / 1e6
    table.caption = f"After 600 reports, the worker's resident memory grew by {grown:.1f} MB."
    return table


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
