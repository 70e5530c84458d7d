"""The list of jobs is searched, filtered, sorted and paged by the database."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from flask import Flask
from service.jobs import register as register_job
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.db import queries
from zeus_service.db.queries import (
    JOB_STATES,
    LATEST,
    SORTS,
    JobPage,
    JobQuery,
    list_jobs,
)
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job


def register(*job_ids: str, **changes: object) -> None:
    for job_id in job_ids:
        register_job(job_id=job_id, **changes)


def change(job_id: str, **values: object) -> None:
    with transaction() as session:
        session.execute(update(Job).where(Job.job_id == job_id).values(values))


def read(**query: object) -> JobPage:
    query = {"sort": "job", "descending": False, **query}
    return list_jobs(JobQuery(**query))  # type: ignore[arg-type]


def ids(**query: object) -> list[str]:
    return [job.job_id for job, *_ in read(**query).jobs]


def test_the_search_finds_parts_of_ids_in_any_case_and_takes_no_wildcards(app: Flask) -> None:
    register("Ads-1", "ads-2", "per%cent", "news")
    assert ids(search="ADS") == ["Ads-1", "ads-2"]
    assert ids(search="%") == ["per%cent"]
    assert ids(search="_") == []
    assert ids(search="'; DROP TABLE jobs") == []
    assert read(search="ads").counts == {"learning": 2}


def test_pages_are_cut_and_the_last_one_is_shown_beyond_the_end(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PAGE_SIZE", 3)
    register(*(f"job-{number}" for number in range(7)))
    assert ids(page=2) == ["job-3", "job-4", "job-5"]
    page = read(page=99)
    assert (page.query.page, page.pages) == (3, 3)
    assert [job.job_id for job, *_ in page.jobs] == ["job-6"]


def test_each_sort_orders_the_jobs_and_unknown_values_come_last(app: Flask) -> None:
    register("a", "b", "c", "d")
    now = time.time()
    change("a", saved_energy_j=5.0, failures=2, updated_at=now)
    change("b", saved_energy_j=2.0, failures=4, updated_at=now - 9)
    change("c", saved_energy_j=-1.0, exhausted=True, updated_at=now - 5)
    change("d", updated_at=now - 7)
    orders = {"attention": "adbc", "job": "abcd", "saved": "cbad", "last_run": "bdca"}
    assert set(orders) == set(SORTS)
    for sort, order in orders.items():
        assert "".join(ids(sort=sort)) == order, sort
    assert "".join(ids(sort="attention", descending=True)) == "cbad"


def test_states(app: Flask) -> None:
    day, now = 86400.0, time.time()
    daily = {"trials": 10, "created_at": now - 16 * day, "updated_at": now - 6 * day}
    wanted = {
        "new": ("learning", {"trials": 0}),
        "few failures": ("learning", {"trials": 9, "exploits": 4, "failures": 2}),
        "settled": ("settled", {"trials": 9, "exploits": 5}),
        "stale": ("stale", {**daily, "exploits": 5}),
        "weekly": ("settled", {**daily, "trials": 2, "exploits": 5}),
        "never run": ("learning", {"updated_at": now - 99 * day}),
        "failing": ("failing", {**daily, "exploits": 5, "failures": 3}),
        "exhausted": ("exhausted", {"failures": 9, "exhausted": True}),
    }
    register(*wanted)
    for job_id, (_, values) in wanted.items():
        change(job_id, **values)
    page = read()
    found = {job.job_id: state for job, state, _ in page.jobs}
    assert found == {job_id: state for job_id, (state, _) in wanted.items()}
    assert all(optimizer.describe_job(job_id)[1] == state for job_id, state in found.items())
    assert {job.job_id: state for job, state in optimizer.list_jobs()} == found
    assert page.counts == Counter(found.values())
    for state in JOB_STATES:
        assert ids(state=state) == sorted(each for each in found if found[each] == state)


def test_the_version_of_the_list_changes_when_a_job_becomes_stale_by_itself(app: Flask) -> None:
    register("job")
    now = time.time()
    times = {"created_at": now - 9 * 86400, "updated_at": now - 4 * 86400}
    change("job", trials=4, **times)
    before = queries.list_version()
    change("job", trials=6, **times)
    assert optimizer.describe_job("job")[1] == "stale"
    assert queries.list_version() != before


def test_a_list_has_the_latest_trials_of_its_jobs_that_have_ended(app: Flask) -> None:
    register("job", "other", policy="default")
    for number in range(1, LATEST + 3):
        optimizer.start_trial("job", control=True)
        optimizer.end_trial("job", number, "errored" if number % 2 else "diverged")
    optimizer.start_trial("job", control=True)
    optimizer.start_trial("other")
    page = read()
    latest = {job.job_id: page.latest[job.key] for job, *_ in page.jobs}
    assert [row.outcome for row in latest["job"]][-2:] == ["errored", "diverged"]
    assert len(latest["job"]) == LATEST - 1  # the latest one is running
    assert latest["other"] == []
