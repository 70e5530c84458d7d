"""A job with a long history, written by the database itself: 100,000 trials take seconds."""

from __future__ import annotations

import random
import time

import sqlalchemy as sa
from zeus_service.db.tables import Job, Report, Trial

_JOBS, _TRIALS, _REPORTS = Job.__table__, Trial.__table__, Report.__table__
PORTION = 1000


def add_history(connection: sa.Connection, job_id: str, trials: int, reports: int = 10) -> None:
    """Add trials that have ended, with reports, to a job that has had one.

    The job's state stays as it is.

    Args:
        connection: In a transaction.
        job_id: The job.
        trials: How many there are to be.
        reports: Of each trial.
    """
    stored = sa.select(_JOBS.c.key, _JOBS.c.spec).where(_JOBS.c.job_id == job_id)
    job_key, spec = connection.execute(stored).one()
    of_job = _TRIALS.c.job_key == job_key
    last = connection.execute(sa.select(sa.func.max(_TRIALS.c.trial_number)).where(of_job)).scalar()
    row = connection.execute(sa.select(_TRIALS).where(of_job, _TRIALS.c.trial_number == last)).one()
    rng, now = random.Random(1), time.time()
    batch = [
        {
            **row._mapping,
            "trial_number": last + number,
            "idempotency_key": None,
            "batch_size": rng.choice(spec["batch_sizes"]),
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
    connection.execute(sa.insert(_TRIALS), batch)
    names = [column.name for column in _TRIALS.columns if column.name != "trial_number"]
    done = last + len(batch)
    while done < trials:  # as many again
        moved = done - last
        copies = sa.select(_TRIALS.c.trial_number + moved, *_TRIALS.c[tuple(names)]).where(
            of_job, _TRIALS.c.trial_number > last, _TRIALS.c.trial_number <= trials - moved
        )
        connection.execute(sa.insert(_TRIALS).from_select(["trial_number", *names], copies))
        done = min(2 * done - last, trials)
    numbers = {
        "started_seq": 2 * _TRIALS.c.trial_number - 1,
        "ended_seq": 2 * _TRIALS.c.trial_number,
    }
    added = sa.and_(of_job, _TRIALS.c.trial_number > last)
    connection.execute(sa.update(_TRIALS).where(added).values(numbers))
    _add_reports(connection, added, reports)
    this = _JOBS.c.job_id == job_id
    connection.execute(sa.update(_JOBS).where(this).values(trials=trials, sequence=2 * trials))


def _add_reports(connection: sa.Connection, added: sa.ColumnElement[bool], count: int) -> None:
    each = [sa.select(sa.literal(number).label("sequence")) for number in range(1, count + 1)]
    numbers = sa.union_all(*each).subquery("numbers")
    share = numbers.c.sequence * 1.0 / count
    values = {
        "job_key": _TRIALS.c.job_key,
        "trial_number": _TRIALS.c.trial_number,
        "sequence": numbers.c.sequence,
        "epoch": numbers.c.sequence,
        "time_s": _TRIALS.c.time_s * share,
        "energy_j": _TRIALS.c.energy_j * share,
        "metric": share * 0.9,
        "decision": sa.literal("continue"),
        "outcome": sa.null(),
        "cost": _TRIALS.c.cost * share,
        "cost_bound": sa.literal(2000.0),
        "reason": sa.literal("short of the target"),
        "reported_at": _TRIALS.c.started_at,
    }
    source = sa.select(*values.values()).select_from(_TRIALS.join(numbers, sa.true())).where(added)
    connection.execute(sa.insert(_REPORTS).from_select([*values], source))
