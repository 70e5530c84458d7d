"""A job with a long history, written by the database itself: 100,000 trials take seconds."""

from __future__ import annotations

import random
import time

import sqlalchemy as sa
from zeus_service.db.tables import EVENTS, JOBS, REPORTS, TRIALS

PORTION = 1000


def add_history(connection: sa.Connection, job_id: str, trials: int, reports: int = 10) -> None:
    """Add trials that have ended, with reports and events, to a job that has had one.

    The job's state stays as it is.

    Args:
        connection: In a transaction.
        job_id: The job.
        trials: How many there are to be.
        reports: Of each trial.
    """
    of_job = TRIALS.c.job_id == job_id
    last = connection.execute(sa.select(sa.func.max(TRIALS.c.trial_number)).where(of_job)).scalar()
    row = connection.execute(sa.select(TRIALS).where(of_job, TRIALS.c.trial_number == last)).one()
    sizes = connection.execute(sa.select(JOBS.c.spec).where(JOBS.c.job_id == job_id)).scalar_one()
    rng, now = random.Random(1), time.time()
    batch = [
        {
            **row._mapping,
            "trial_number": last + number,
            "idempotency_key": None,
            "batch_size": rng.choice(sizes["batch_sizes"]),
            "outcome": rng.choice(["converged"] * 8 + ["early_stopped", "lost"]),
            "cost": 1000 * rng.lognormvariate(0, 0.3),
            "energy_j": 900 * rng.lognormvariate(0, 0.3),
            "time_s": 60.0,
            "metric": 0.9,
            "epoch": reports,
            "reports": reports,
            "started_at": now - 60,
            "ended_at": now,
            "reason": "",
        }
        for number in range(1, min(PORTION, trials - last) + 1)
    ]
    connection.execute(sa.insert(TRIALS), batch)
    names = [column.name for column in TRIALS.columns if column.name != "trial_number"]
    done = last + len(batch)
    while done < trials:  # as many again
        moved = done - last
        copies = sa.select(TRIALS.c.trial_number + moved, *TRIALS.c[tuple(names)]).where(
            of_job, TRIALS.c.trial_number > last, TRIALS.c.trial_number <= trials - moved
        )
        connection.execute(sa.insert(TRIALS).from_select(["trial_number", *names], copies))
        done = min(2 * done - last, trials)
    added = sa.and_(of_job, TRIALS.c.trial_number > last)
    _add_reports(connection, added, reports)
    _add_events(connection, added)
    connection.execute(
        sa.update(JOBS).where(JOBS.c.job_id == job_id).values(trials=trials, events=2 * trials)
    )


def _add_reports(connection: sa.Connection, added: sa.ColumnElement[bool], count: int) -> None:
    each = [sa.select(sa.literal(number).label("sequence")) for number in range(1, count + 1)]
    numbers = sa.union_all(*each).subquery("numbers")
    share = numbers.c.sequence * 1.0 / count
    values = {
        "job_id": TRIALS.c.job_id,
        "trial_number": TRIALS.c.trial_number,
        "sequence": numbers.c.sequence,
        "epoch": numbers.c.sequence,
        "time_s": TRIALS.c.time_s * share,
        "energy_j": TRIALS.c.energy_j * share,
        "metric": share * 0.9,
        "decision": sa.literal("continue"),
        "outcome": sa.null(),
        "cost": TRIALS.c.cost * share,
        "cost_bound": sa.literal(2000.0),
        "reason": sa.literal("short of the target"),
        "reported_at": TRIALS.c.started_at,
    }
    source = sa.select(*values.values()).select_from(TRIALS.join(numbers, sa.true())).where(added)
    connection.execute(sa.insert(REPORTS).from_select([*values], source))


def _add_events(connection: sa.Connection, added: sa.ColumnElement[bool]) -> None:
    for offset, kind in ((1, "started"), (0, "ended")):
        ended = kind == "ended"
        values = {
            "job_id": TRIALS.c.job_id,
            "sequence": 2 * TRIALS.c.trial_number - offset,
            "kind": sa.literal(kind),
            "trial_number": TRIALS.c.trial_number,
            "batch_size": TRIALS.c.batch_size,
            "why": TRIALS.c.why,
            "outcome": TRIALS.c.outcome if ended else sa.null(),
            "cost": TRIALS.c.cost if ended else sa.literal(0.0),
            "happened_at": TRIALS.c.ended_at if ended else TRIALS.c.started_at,
        }
        source = sa.select(*values.values()).where(added)
        connection.execute(sa.insert(EVENTS).from_select([*values], source))
