"""The list of jobs is searched, filtered, sorted and paged by the database."""

from __future__ import annotations

import pytest
from flask import Flask
from service.jobs import let_leases_expire
from service.jobs import register as register_job
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.db import queries
from zeus_service.db.queries import SORTS, JobPage, JobQuery, list_jobs
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


def test_no_jobs(app: Flask) -> None:
    page = read()
    assert (page.jobs, page.counts, page.pages, page.running) == ([], {}, 1, 0)


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
    register("a", "b", "c")
    change("a", saved_energy_j=5.0, best_batch_size=64, trials=5, failures=0, updated_at=3.0)
    change("b", best_batch_size=8, trials=1, failures=4, updated_at=1.0)
    change("c", saved_energy_j=-1.0, trials=9, failures=1, updated_at=2.0)
    optimizer.start_trial("b", None)
    change("b", trials=1, updated_at=1.0, saved_energy_j=2.0)
    orders = {
        "job": "abc", "best": "bac", "trials": "bac", "failures": "acb", "last_run": "bca",
        "running": "acb", "saved": "cba",
    }  # fmt: skip
    assert set(orders) == set(SORTS)
    for sort, order in orders.items():
        assert "".join(ids(sort=sort)) == order, sort
    assert "".join(ids(sort="best", descending=True)) == "abc"


def test_states(app: Flask) -> None:
    register("new", "learning", "settled", "exhausted")
    change("learning", trials=9, exploits=4)
    change("settled", trials=9, exploits=5)
    change("exhausted", trials=9, stage="exhausted", exploits=9)
    page = read()
    found = {job.job_id: state for job, state, _ in page.jobs}
    assert found == {
        "new": "learning",
        "learning": "learning",
        "settled": "settled",
        "exhausted": "exhausted",
    }
    assert all(queries.job_state(job_id) == state for job_id, state in found.items())
    assert page.counts == {"learning": 2, "settled": 1, "exhausted": 1}
    assert ids(state="settled") == ["settled"]


def test_a_run_whose_lease_is_over_is_not_in_flight(app: Flask, database_url: str) -> None:
    register("job", "killed")
    optimizer.start_trial("killed", None)
    let_leases_expire(database_url)
    optimizer.start_trial("job", None)
    page = read()
    assert {job.job_id: running for job, _, running in page.jobs} == {"job": 1, "killed": 0}
    assert page.running == 1
