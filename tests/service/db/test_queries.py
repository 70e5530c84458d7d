"""Trials and reports are listed in pages, newest first, and the latest are drawn in figures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from service.db.test_power_profiles import profile
from service.jobs import let_leases_expire, register
from service.jobs import report as report_of
from sqlalchemy import insert, select
from zeus_service import maintenance, optimizer
from zeus_service.db import power_profiles, queries
from zeus_service.db.queries import POINTS, Page
from zeus_service.db.session import transaction
from zeus_service.db.tables import Trial
from zeus_service.errors import NotFound


@pytest.fixture
def job(app: Flask) -> str:
    """More trials than are drawn: every third is lost, every fifth has another batch size."""
    register()
    optimizer.start_trial("job", None)
    optimizer.end_trial("job", 1, "errored")
    table = Trial.__table__
    with transaction() as session:
        row = session.execute(select(table)).mappings().one()
        changes = [
            {
                "trial_number": number,
                "outcome": None if number > POINTS + 8 else "diverged" if number % 3 else "lost",
                "batch_size": 8 if number % 5 == 0 else 16,
            }
            for number in range(2, POINTS + 11)
        ]
        session.execute(insert(table), [{**row, **each} for each in changes])
    return "job"


def numbers(page: Page) -> list[int]:
    return [trial.trial_number for trial in page.rows]


def test_pages_go_from_the_newest_to_the_first(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGE_SIZE", 4)
    last = POINTS + 10
    page = queries.list_trials(job)
    assert (numbers(page), page.older) == ([*range(last, last - 4, -1)], last - 4)
    page = queries.list_trials(job, upto=page.older)
    assert (numbers(page)[0], page.older) == (last - 4, last - 8)
    page = queries.list_trials(job, upto=3)
    assert (numbers(page), page.older) == ([3, 2, 1], None)


def report(number: int, sequence: int) -> None:
    optimizer.report("job", number, report_of(sequence, metric=0.1 * sequence))


def test_figures_draw_the_latest_trials_that_trained_something(job: str) -> None:
    def drawn() -> list[int]:
        return [trial.trial_number for trial, _ in queries.latest_trials(job)]

    assert drawn() == list(range(9, POINTS + 9))
    optimizer.end_trial(job, POINTS + 9, "withdrawn")
    assert drawn() == list(range(9, POINTS + 9))


def test_pages_of_reports(app: Flask) -> None:
    register(max_epochs=1000, beta_knob=None, target_metric=1e6)
    optimizer.start_trial("job", None)
    assert queries.list_reports("job", 1).rows == []
    for sequence in range(1, queries.PAGE_SIZE + 4):
        report(1, sequence)
    page = queries.list_reports("job", 1)
    newest = list(range(queries.PAGE_SIZE + 3, 3, -1))
    assert [row.sequence for row in page.rows] == newest
    assert page.older == 3
    page = queries.list_reports("job", 1, page.older)
    assert ([row.sequence for row in page.rows], page.older) == ([3, 2, 1], None)
    drawn = queries.latest_reports("job", 1)
    assert [row.sequence for row in drawn] == list(range(1, queries.PAGE_SIZE + 4))


def test_running_trials_are_listed_newest_first(app: Flask, database_url: str) -> None:
    register()
    for _ in range(3):
        optimizer.start_trial("job", None)
    optimizer.end_trial("job", 2, "errored")
    let_leases_expire(database_url)
    report(3, 1)
    found = [(trial.trial_number, has_lease) for trial, has_lease in queries.running_trials("job")]
    assert found == [(3, True), (1, False)]
    trial, has_lease = queries.get_trial("job", 3)
    assert (trial.epoch, has_lease) == (1, True)


def test_a_version_changes_with_what_its_page_shows(app: Flask, database_url: str) -> None:
    register()
    optimizer.start_trial("job")

    def changed(act: Callable[[], object]) -> set[str]:
        before = versions()
        act()
        after = versions()
        return {name for name, version in after.items() if version != before[name]}

    def versions() -> dict[str, object]:
        return {
            "jobs": queries.list_version(),
            "job": queries.job_version("job"),
            "running": queries.running_version("job"),
        }

    every = {"jobs", "job", "running"}
    assert changed(lambda: None) == set()
    assert changed(lambda: report(1, 1)) == {"running"}
    assert changed(lambda: let_leases_expire(database_url)) == {"jobs", "running"}
    assert changed(lambda: report(1, 2)) == {"jobs", "running"}
    assert changed(lambda: optimizer.start_trial("job", None)) == every
    assert changed(lambda: optimizer.heartbeat("job", 1)) == {"running"}
    assert changed(lambda: optimizer.end_trial("job", 1, "errored")) == every
    assert changed(lambda: power_profiles.put("job", profile())) == {"job"}


def test_a_deleted_job_is_not_read_and_its_id_has_other_versions(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEPS", 0)  # its rows are still there

    def make() -> tuple[object, ...]:
        register()
        optimizer.start_trial("job")
        report(1, 1)
        return queries.job_version("job")

    before = make()
    maintenance.delete_job("job", force=True)
    page = queries.list_jobs(queries.JobQuery())
    assert (page.jobs, page.counts) == ([], {})
    with pytest.raises(NotFound):
        queries.job_version("job")
    with pytest.raises(NotFound):
        queries.get_trial("job", 1)
    assert not queries.running_trials("job")
    assert not queries.latest_reports("job", 1)
    assert make() != before
    assert [report.sequence for report in queries.latest_reports("job", 1)] == [1]


def test_all_who_ask_at_once_get_the_same_key_to_sign_with(app: Flask) -> None:
    def read(_: int) -> str:
        with app.app_context():
            return queries.signing_key()

    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(read, range(16)))
    assert len(keys) == 1
    assert len(keys.pop()) == 64
