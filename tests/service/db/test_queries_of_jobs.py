"""The list of jobs is searched, filtered, sorted and paged by the database."""

from __future__ import annotations

import time

from flask import Flask
from service.jobs import let_leases_expire, spec_json
from sqlalchemy import update
from zeus_service import optimizer
from zeus_service.bandit.spec import JobSpec
from zeus_service.db.queries import SORTS, SPARKLINE, JobPage, JobQuery, list_jobs
from zeus_service.db.tables import JOBS
from zeus_service.db.transactions import transaction
from zeus_service.messages import Report, TrialEnd

DAY_S = 86400.0


def register(*job_ids: str, **changes: object) -> None:
    for job_id in job_ids:
        optimizer.register_job(JobSpec.model_validate(spec_json(job_id=job_id, **changes)))


def change(job_id: str, **values: object) -> None:
    with transaction() as connection:
        connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(values))


def read(*, now: float | None = None, **query: object) -> JobPage:
    query = {"sort": "job", "descending": False, **query}
    return list_jobs(JobQuery(**query), now=now or time.time())  # type: ignore[arg-type]


def ids(**query: object) -> list[str]:
    return [job.job_id for job in read(**query).jobs]


def test_no_jobs(app: Flask) -> None:
    page = read()
    assert (page.jobs, page.found, page.pages, page.total, page.running) == ([], 0, 1, 0, 0)


def test_the_search_finds_parts_of_ids_in_any_case_and_takes_no_wildcards(app: Flask) -> None:
    register("Ads-1", "ads-2", "per%cent", "news")
    assert ids(search="ADS") == ["Ads-1", "ads-2"]
    assert ids(search="%") == ["per%cent"]
    assert ids(search="_") == []
    assert ids(search="'; DROP TABLE jobs") == []
    assert read(search="ads").counts == {"learning": 2}
    assert read(search="ads").total == 4


def test_pages_are_cut_and_the_last_one_is_shown_beyond_the_end(app: Flask) -> None:
    register(*(f"job-{number}" for number in range(7)))
    assert ids(size=3, page=2) == ["job-3", "job-4", "job-5"]
    page = read(size=3, page=99)
    assert (page.query.page, page.pages) == (3, 3)
    assert [job.job_id for job in page.jobs] == ["job-6"]


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
    register("new", "learning", "settled", "exhausted", "daily-stale", "monthly", "stale-but-runs")
    now = time.time()
    change("learning", trials=9, exploits=4)
    change("settled", trials=9, exploits=5)
    change("exhausted", trials=9, stage="exhausted", exploits=9, created_at=0, updated_at=1)
    ago = {"trials": 30, "created_at": now - 40 * DAY_S, "updated_at": now - 10 * DAY_S}
    change("daily-stale", exploits=9, **ago)
    change("monthly", **{**ago, "trials": 2})
    optimizer.start_trial("stale-but-runs", None)
    change("stale-but-runs", **ago)
    page = read(now=now)
    found = {job.job_id: job.state for job in page.jobs}
    assert found == {
        "new": "learning",
        "learning": "learning",
        "settled": "settled",
        "exhausted": "exhausted",
        "daily-stale": "stale",
        "monthly": "learning",
        "stale-but-runs": "learning",
    }
    assert page.counts == {"learning": 4, "settled": 1, "exhausted": 1, "stale": 1}
    assert page.running == 1
    assert [job.job_id for job in read(now=now, state="stale").jobs] == ["daily-stale"]
    assert read(now=now, state="stale").found == 1


def test_a_run_whose_lease_is_over_is_not_in_flight(app: Flask, database_url: str) -> None:
    register("job", "killed")
    optimizer.start_trial("killed", None)
    let_leases_expire(database_url)
    optimizer.start_trial("job", None)
    page = read()
    assert {job.job_id: job.running for job in page.jobs} == {"job": 1, "killed": 0}
    assert page.running == 1


def test_a_job_has_its_latest_costs_its_default_and_its_runs(app: Flask) -> None:
    register("job", beta_knob=None, meter="cpu-estimate")
    register("other")
    for number in range(1, SPARKLINE + 4):
        optimizer.start_trial("job", None)
        report = Report(sequence=1, epoch=1, time_s=0.0, energy_j=2.0 * number, metric=1.0)
        optimizer.report("job", number, report)
    optimizer.start_trial("job", None)
    optimizer.start_trial("job", None)
    optimizer.end_trial("job", SPARKLINE + 5, TrialEnd(outcome="withdrawn"))
    page = read()
    job, other = page.jobs
    assert page.costs == {"job": list(map(float, range(6, SPARKLINE + 4))), "other": []}
    assert page.defaults == {"job": 32, "other": 32}
    assert (job.trials, job.running, job.estimated) == (SPARKLINE + 5, 1, True)
    assert (other.running, other.saved_energy_j) == (0, None)
