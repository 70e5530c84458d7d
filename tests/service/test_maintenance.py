"""What is old is dropped beside running trials, and nothing that a job's state needs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.db.races import just_before, on_servers
from service.jobs import register, report
from sqlalchemy import event, func, insert, select, update
from zeus_service import maintenance, optimizer
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, PowerProfile, Report, Trial, db
from zeus_service.errors import BrokenJob, JobBusy, NotFound
from zeus_service.maintenance import Dropped

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
TABLES = (Job, Trial, Report, PowerProfile)


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is much, so that a short history takes many transactions."""
    monkeypatch.setattr(maintenance, "TRIALS_AT_ONCE", 2)


def converge(job_id: str = "job", reports: int = 4) -> int:
    """A trial from its start to its target; its number."""
    number = optimizer.start_trial(job_id)[1].trial_number
    for sequence in range(1, reports):
        if optimizer.report(job_id, number, report(sequence)).decision == "stop":
            return number
    optimizer.report(job_id, number, report(reports, metric=1.0))
    return number


def age(*numbers: int, by_s: float = YEAR_S, reports: bool = True) -> None:
    """Make trials older, with their reports or without them."""
    with transaction() as session:
        these = update(Trial).where(Trial.trial_number.in_(numbers))
        session.execute(these.values(ended_at=Trial.ended_at - by_s))
        if reports:
            theirs = update(Report).where(Report.trial_number.in_(numbers))
            session.execute(theirs.values(reported_at=Report.reported_at - by_s))


def count(table: Any) -> int:
    with transaction(read_only=True) as session:
        return int(session.execute(select(func.count()).select_from(table)).scalar_one())


def trial_numbers() -> list[int]:
    return [trial.trial_number for trial in optimizer.list_trials("job", limit=1000)]


def with_reports() -> list[int]:
    with transaction(read_only=True) as session:
        numbers = select(Report.trial_number).distinct().order_by(Report.trial_number)
        return list(session.scalars(numbers))


def prune() -> Dropped:
    return maintenance.prune(older_than_s=180 * DAY_S)


def test_pruning_drops_reports_and_keeps_the_history(app: Flask, small_portions: None) -> None:
    register(beta_knob=None)
    for _ in range(8):
        converge()
    running = optimizer.start_trial("job")[1].trial_number
    optimizer.report("job", running, report(1))
    age(*range(1, 8), running)
    state = optimizer.get_job("job").state
    assert prune() == Dropped(reports=28)
    assert with_reports() == [8, running]
    assert trial_numbers() == list(range(1, 10))
    assert optimizer.get_job("job").state == state
    assert maintenance.rebuild("job")
    assert prune() == Dropped()


@on_sqlite
def test_a_trial_whose_reports_were_dropped_can_be_resumed(app: Flask) -> None:
    register()
    optimizer.start_trial("job")
    optimizer.report("job", 1, report(1))
    optimizer.end_trial("job", 1, "interrupted")
    age(1)
    prune()
    assert optimizer.report("job", 1, report(2)).decision == "continue"
    assert maintenance.rebuild("job")


@on_sqlite
def test_reports_of_baselines_are_kept_until_the_target_is_learned_from_them(app: Flask) -> None:
    register(target_metric=None)
    for number, metric in ((1, 0.7), (2, 0.72), (3, 0.71)):
        optimizer.start_trial("job")
        optimizer.report("job", number, report(1, metric=metric))
        optimizer.report("job", number, report(2, metric=0.1))
        if number == 1:
            optimizer.end_trial("job", 1, "interrupted")
        age(1, 2)
        assert prune() == Dropped()
        if number > 1:
            optimizer.end_trial("job", number, "completed")
    optimizer.end_trial("job", 1, "completed")
    ended = optimizer.list_trials("job")
    assert [(trial.outcome, trial.epoch, trial.metric) for trial in ended] == [
        ("converged", 1, 0.7),
        ("converged", 1, 0.72),
        ("converged", 1, 0.71),
    ]
    age(1, 2, 3)
    assert prune() == Dropped(reports=6)
    assert maintenance.rebuild("job")


@on_sqlite
def test_reports_that_came_since_the_trial_was_found_to_be_old_are_kept(app: Flask) -> None:
    """The trial was resumed meanwhile: the same report again must get the same answer."""
    register(beta_knob=None)
    age(converge(), reports=False)
    assert prune() == Dropped()
    assert with_reports() == [1]


@on_sqlite
def test_each_transaction_is_small(app: Flask, small_portions: None) -> None:
    register(beta_knob=None)
    numbers = [converge(reports=10) for _ in range(7)]
    age(*numbers[:5])
    rows = sum(map(count, (Report, Trial)))
    deleted: list[int] = []

    def note(_c: Any, cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith(("DELETE FROM reports", "DELETE FROM trials")):
            deleted.append(cursor.rowcount)

    event.listen(db.engine, "after_cursor_execute", note)
    try:
        prune()
        assert with_reports() == numbers[5:]
        maintenance.delete_job("job")
        assert count(Trial) == 1  # a deletion sweeps three times two of them
        prune()
    finally:
        event.remove(db.engine, "after_cursor_execute", note)
    assert max(deleted) <= 20
    assert sum(deleted) == rows
    assert [count(table) for table in TABLES] == [0] * len(TABLES)


def test_pruning_runs_beside_trials(app: Flask, small_portions: None) -> None:
    register(beta_knob=None)
    age(*[converge() for _ in range(10)])

    def run() -> None:
        with app.app_context():
            for _ in range(10):
                converge()

    with ThreadPoolExecutor(1) as pool:
        runs = pool.submit(run)
        while not runs.done():
            prune()
        runs.result()
    assert with_reports() == list(range(11, 21))
    assert maintenance.rebuild("job")


def test_an_id_is_free_as_soon_as_its_job_is_deleted(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows it has: they are swept later."""
    monkeypatch.setattr(maintenance, "SWEEPS", 0)
    register(beta_knob=None)
    optimizer.start_trial("job", "key")
    for _ in range(3):
        converge()
    with pytest.raises(JobBusy):
        maintenance.delete_job("job")
    maintenance.delete_job("job", force=True)
    with pytest.raises(NotFound):
        optimizer.get_job("job")
    with pytest.raises(NotFound):
        optimizer.report("job", 1, report(1))
    assert optimizer.list_jobs() == []
    assert "zeus_bso_trials_running 0.0" in app.test_client().get("/metrics").text
    assert register()[1]
    assert optimizer.start_trial("job", "key")[1].trial_number == 1
    assert optimizer.report("job", 1, report(1)).decision == "continue"
    assert prune() == Dropped(rows=3 * 5 + 1 + 2)  # trials with reports, the job and its era
    assert trial_numbers() == [1]
    assert maintenance.rebuild("job")


def test_a_start_need_not_wait_for_a_rebuild(app: Flask) -> None:
    register(beta_knob=None)
    for _ in range(3):
        converge()
    right = optimizer.get_job("job").state
    with transaction() as session:
        session.execute(update(Job).values(state={**right, "another": 1}))
    with just_before("trials.ended_seq IS NULL", converge):
        assert not maintenance.rebuild("job")
    assert trial_numbers() == [1, 2, 3, 4]
    assert maintenance.rebuild("job")
    assert "another" not in optimizer.get_job("job").state


@on_servers  # SQLite reads a snapshot
def test_a_job_that_is_registered_again_while_it_is_read_has_its_own_state(app: Flask) -> None:
    register()
    number = optimizer.start_trial("job")[1].trial_number
    optimizer.end_trial("job", number, "withdrawn")

    def register_again() -> None:
        register(batch_sizes=[2, 4], default_batch_size=2)

    with just_before("trials.ended_seq IS NULL", register_again):
        assert maintenance.rebuild("job")
    assert optimizer.start_trial("job")[1].batch_size == 2


BROKEN = {
    "specification": {"spec": {}},
    "policy": {"spec": {"policy": "of another version"}},
    "state": {"state": {"round": 1}},
}


@on_sqlite
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_job_stops_no_other(app: Flask, what: str) -> None:
    for job_id in ("a", "job"):
        register(job_id=job_id, beta_knob=None)
        converge(job_id)
    changes = BROKEN[what]
    if what == "policy":
        changes = {"spec": {**optimizer.get_job("a").spec, **changes["spec"]}}
    with transaction() as session:
        session.execute(update(Job).where(Job.job_id == "a").values(**changes))
    with pytest.raises(BrokenJob, match="job 'a' cannot be used"):
        optimizer.start_trial("a")
    converge()
    assert [job.job_id for job, _ in optimizer.list_jobs()] == ["a", "job"]
    age(1)
    assert prune().reports == 8
    if what == "state":
        assert not maintenance.rebuild("a")
        converge("a")
    else:
        with pytest.raises(BrokenJob):
            maintenance.rebuild("a")
    maintenance.delete_job("a")


@on_sqlite
@pytest.mark.parametrize("delete", [False, True])
def test_sqlite_gives_the_space_back_with_its_next_checkpoint(
    app: Flask, database_url: str, delete: bool
) -> None:
    register()
    number = converge()
    age(number)
    path = Path(database_url.removeprefix("sqlite:///"))
    small = path.stat().st_size
    table = Report.__table__
    with transaction() as session:
        row = dict(session.execute(select(table).limit(1)).one()._mapping)
        rows = [{**row, "sequence": n, "reason": "x" * 900} for n in range(100, 5000)]
        session.execute(insert(table), rows)
    if delete:
        maintenance.delete_job("job")
    maintenance.prune(older_than_s=DAY_S)
    assert count(Report) == 0
    db.engine.dispose()  # the last connection that is closed makes one
    assert path.stat().st_size <= small
