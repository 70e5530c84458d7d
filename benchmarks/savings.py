"""How long what was saved takes to answer: all jobs together, one long job, and a scrape.

    ZEUS_TEST_POSTGRES_URL=postgresql://postgres@127.0.0.1/postgres python benchmarks/savings.py

It fills a new database on that server, and a SQLite file, with 10,000 jobs that have recurred daily
for 30 days, and with one job of 100,000 trials, and drops them. These are measurements to read.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import sqlalchemy as sa
from rich.console import Console
from zeus_service import create_app
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.spec import JobSpec
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade
from zeus_service.db.tables import JOBS, SAVED_ON_DAYS, TRIALS, db
from zeus_service.savings.ledger import new_ledger

from service import database

PORTION = 20_000


def spec(job_id: str) -> JobSpec:
    """A job."""
    return JobSpec(
        job_id=job_id,
        batch_sizes=[16, 32, 64, 128, 256],
        default_batch_size=64,
        target_metric=0.9,
        monitor="val_acc",
        max_epochs=100,
        max_power_w=250.0,
        num_devices=1,
        device_model="none",
        meter="nvml",
        policy="information_directed",
    )


def fill(connection: sa.Connection, jobs: int, days: int, trials: int) -> None:
    """Insert the jobs with their days, and the trials of the first one."""
    today = int(time.time() // 86400)
    state = InformationDirectedPolicy().initial_state(spec("job"))
    mean = [100.0, 10.0, 1300.0]
    arm = [3, *map(math.log, mean)]
    book = new_ledger() | {"default": {"count": 3, "mean": mean}, "arms": {"64": arm}}
    amounts = {"energy_j": 30.0, "time_s": 3.0, "cost": 390.0}
    errors = {f"{name}_error": value / 4 for name, value in amounts.items()}
    saved = {f"saved_{name}": value for name, value in (amounts | errors).items()}

    def insert(table: sa.Table, rows: list[dict[str, object]]) -> None:
        for start in range(0, len(rows), PORTION):
            connection.execute(sa.insert(table), rows[start : start + PORTION])

    ids = [f"job-{number:05}" for number in range(jobs)]
    common = {"state": state, "ledger": book, "trials": trials, "events": 0, "cost_bound": None}
    times = {"created_at": time.time(), "updated_at": time.time()}
    every = {"estimated": False, **common, **times, **saved}
    for column in JOBS.columns:  # what lists of jobs show beside
        if column.name not in every and not column.nullable:
            every[column.name] = column.type.python_type()
    insert(JOBS, [{**every, "job_id": i, "spec": spec(i).model_dump(mode="json")} for i in ids])
    for day in range(today - days + 1, today + 1):
        rows = {"day": day, "recurrences": 1, **amounts, **errors}
        insert(SAVED_ON_DAYS, [{**rows, "job_id": job_id} for job_id in ids])
    trial = {
        "job_id": ids[0],
        "generation": "g",
        "why": "exploit",
        "start_reason": "",
        "reason": "",
        "outcome": "converged",
        "started_at": 1.0,
        "ended_at": 2.0,
        "lease_expires_at": 3.0,
        "idempotency_key": None,
        "start_cost_bound": None,
        "metric": 1.0,
        "reports": 10,
        "epoch": 10,
        "batch_size": 64,
        **amounts,
    }
    insert(TRIALS, [{**trial, "trial_number": number} for number in range(1, trials + 1)])


def measure(url: str, options: dict[str, int], console: Console) -> None:
    """Fill a database, and print what each request takes."""
    app = create_app(Config(database_url=url))
    upgrade(app)
    with app.app_context():
        with db.engine.begin() as connection:
            fill(connection, **options)
        client = app.test_client()
        paths = ["/api/v1/savings", "/api/v1/jobs/job-00000/savings?points=2000", "/metrics"]
        for path in paths:
            took_ms = []
            for _ in range(5):
                began = time.perf_counter()
                assert client.get(path).status_code == 200
                took_ms.append(1e3 * (time.perf_counter() - began))
            console.print(
                f"{db.engine.dialect.name:>10} {path:<45} first {took_ms[0]:4.0f} ms, "
                f"slowest of the others {max(took_ms[1:]):4.0f} ms"
            )
        db.engine.dispose()


def main() -> None:
    """Measure SQLite, and PostgreSQL if a server is named."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--trials", type=int, default=100_000)
    options = vars(parser.parse_args())
    console = Console()
    servers = dict.fromkeys([None, os.environ.get("ZEUS_TEST_POSTGRES_URL")])
    with tempfile.TemporaryDirectory() as folder:
        for server in servers:
            with database(server, Path(folder)) as url:
                measure(url.render_as_string(hide_password=False), options, console)


if __name__ == "__main__":
    main()
