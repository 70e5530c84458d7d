"""Trials are listed in pages, newest first, and read in portions for a file."""

from __future__ import annotations

import pytest
from flask import Flask
from service.jobs import register
from sqlalchemy import insert, select
from zeus_service import optimizer
from zeus_service.db import trial_list
from zeus_service.db.tables import TRIALS
from zeus_service.db.transactions import transaction
from zeus_service.db.trial_list import PORTION, TrialPage, TrialQuery
from zeus_service.messages import TrialEnd


@pytest.fixture
def job(app: Flask) -> str:
    """Two portions of trials: every third diverged, every fifth has another batch size."""
    register()
    optimizer.start_trial("job", None)
    optimizer.end_trial("job", 1, TrialEnd(outcome="errored"))
    with transaction() as connection:
        row = connection.execute(select(TRIALS)).mappings().one()
        changes = [
            {
                "trial_number": number,
                "outcome": None if number > PORTION + 8 else "diverged" if number % 3 else "lost",
                "batch_size": 8 if number % 5 == 0 else 16,
            }
            for number in range(2, PORTION + 11)
        ]
        connection.execute(insert(TRIALS), [{**row, **each} for each in changes])
    return "job"


def numbers(page: TrialPage) -> list[int]:
    return [trial.trial_number for trial in page.trials]


def test_pages_go_from_the_newest_to_the_first_and_back(job: str) -> None:
    last = PORTION + 10
    page = trial_list.read(job, TrialQuery(size=4))
    assert (numbers(page), page.newer, page.older) == ([*range(last, last - 4, -1)], None, last - 4)
    page = trial_list.read(job, TrialQuery(size=4, upto=page.older))
    assert (numbers(page)[0], page.newer, page.older) == (last - 4, last, last - 8)
    page = trial_list.read(job, TrialQuery(size=4, upto=3))
    assert (numbers(page), page.newer, page.older) == ([3, 2, 1], 7, None)


def test_filters(job: str) -> None:
    page = trial_list.read(job, TrialQuery(outcome=trial_list.RUNNING))
    assert numbers(page) == [PORTION + 10, PORTION + 9]
    assert numbers(trial_list.read(job, TrialQuery(outcome="errored"))) == [1]
    page = trial_list.read(job, TrialQuery(outcome="lost", batch_size=8, upto=60))
    assert numbers(page) == [60, 45, 30, 15]
    assert trial_list.read(job, TrialQuery(batch_size=7)).trials == []


def test_portions_contain_every_trial_once(job: str) -> None:
    portions = list(trial_list.portions(job))
    assert [len(rows) for rows in portions] == [PORTION, 10]
    found = [row.trial_number for rows in portions for row in rows]
    assert found == list(range(1, PORTION + 11))
    assert trial_list.get(job, 5).trial_number == 5  # type: ignore[union-attr]
    assert trial_list.get(job, PORTION + 11) is None
