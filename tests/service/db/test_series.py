"""Series are thinned by the database, and keep their extremes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from service.jobs import register
from sqlalchemy import insert, select
from zeus_service import optimizer
from zeus_service.db import series
from zeus_service.db.series import BUCKETS, MAX_POINTS
from zeus_service.db.tables import REPORTS, TRIALS
from zeus_service.db.transactions import transaction
from zeus_service.messages import Report, TrialEnd

MANY = 2 * MAX_POINTS + 123


@pytest.fixture
def job(app: Flask) -> Iterator[str]:
    register()
    return "job"


def add_trials(count: int) -> list[float]:
    """Trials that ended, copied from one by the database; returns their costs."""
    optimizer.start_trial("job", None)
    optimizer.end_trial("job", 1, TrialEnd(outcome="not_converged"))
    values = [float(number * 7919 % 1009) for number in range(2, count + 1)]
    with transaction() as connection:
        row = connection.execute(select(TRIALS)).mappings().one()
        rows = [
            {**row, "trial_number": number, "cost": cost, "outcome": "converged"}
            for number, cost in enumerate(values, 2)
        ]
        connection.execute(insert(TRIALS), rows)
    return [0.0, *values]


def test_few_trials_are_all_there(job: str) -> None:
    assert series.costs(job).rows == []
    values = add_trials(50)
    found = series.costs(job)
    assert [row.cost for row in found.rows] == values
    assert found.total == 50


def test_many_trials_are_thinned_and_each_buckets_extremes_are_kept(job: str) -> None:
    values = add_trials(MANY)
    found = series.costs(job)
    assert found.total == MANY
    assert MAX_POINTS / 3 < len(found.rows) <= MAX_POINTS
    assert [row.trial_number for row in found.rows] == sorted({r.trial_number for r in found.rows})
    assert all(values[row.trial_number - 1] == row.cost for row in found.rows)
    width = -(-MANY // BUCKETS)
    kept = {row.cost for row in found.rows}
    for bucket in _batches(values, width):
        assert {min(bucket), max(bucket)} <= kept


def test_withdrawn_and_running_trials_have_no_cost_to_draw(job: str) -> None:
    for _ in range(2):
        optimizer.start_trial(job, None)
    optimizer.end_trial(job, 1, TrialEnd(outcome="withdrawn"))
    assert series.costs(job).rows == []
    found = series.by_batch_size(job)
    assert found.total == 0
    assert sum(group.trials for group in found.groups) == 2


def test_of_each_batch_size_the_extremes_are_known_and_the_latest_trials(job: str) -> None:
    values = add_trials(series.LATEST + 10)
    found = series.by_batch_size(job)
    assert len(found.latest) == series.LATEST
    assert found.latest[0].trial_number == series.LATEST + 10
    (group,) = (group for group in found.groups if group.outcome == "converged")
    assert (group.lowest, group.highest) == (min(values[1:]), max(values[1:]))
    assert found.total == len(values)


def test_reports_of_a_long_trial_are_thinned(job: str) -> None:
    optimizer.start_trial(job, None)
    assert series.reports(job, 1).rows == []
    figures = {"epoch": 1, "time_s": 1.0, "energy_j": 1.0}
    optimizer.report(job, 1, Report(sequence=1, metric=0.5, **figures))
    with transaction() as connection:
        row = connection.execute(select(REPORTS)).mappings().one()
        metrics = [(number * 31 % 997) / 1000 for number in range(2, MANY)]
        rows = [{**row, "sequence": n, "metric": m} for n, m in enumerate(metrics, 2)]
        connection.execute(insert(REPORTS), rows)
    found = series.reports(job, 1)
    assert found.total == MANY - 1
    assert len(found.rows) <= MAX_POINTS
    assert {min(metrics), max(metrics)} <= {row.metric for row in found.rows}


def test_the_version_changes_with_every_event(job: str) -> None:
    seen = {series.version(job)}
    optimizer.start_trial(job, None)
    seen.add(series.version(job))
    figures = {"epoch": 1, "time_s": 1.0, "energy_j": 1.0}
    optimizer.report(job, 1, Report(sequence=1, metric=0.5, **figures))
    assert series.version(job) in seen  # no figure of the job shows it
    optimizer.end_trial(job, 1, TrialEnd(outcome="errored"))
    seen.add(series.version(job))
    assert len(seen) == 3


def _batches(values: list[float], width: int) -> Iterator[list[float]]:
    for start in range(0, len(values), width):
        yield values[start : start + width]
