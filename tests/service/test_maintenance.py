"""What is old is dropped beside running trials, and nothing that a job's state needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from service.db.races import on_servers
from service.jobs import spec_json
from sqlalchemy import event, func, insert, select, update
from zeus_service import maintenance, optimizer
from zeus_service.bandit.inconclusive import without_counts
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import retention
from zeus_service.db.tables import CHECKPOINTS, EVENTS, JOBS, REPORTS, TRIALS, db
from zeus_service.db.transactions import transaction
from zeus_service.errors import IncompleteHistory, JobBusy, NotFound
from zeus_service.maintenance import Dropped
from zeus_service.messages import Report, TrialEnd

DAY_S = 86400.0
YEAR_S = 365 * DAY_S
TABLES = (JOBS, TRIALS, REPORTS, EVENTS, CHECKPOINTS)


@pytest.fixture
def portions_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is much, so that a short history takes many transactions."""
    monkeypatch.setattr(retention, "PORTION", 3)
    monkeypatch.setattr(maintenance, "PORTION", 3)
    monkeypatch.setattr(retention, "TRIALS_AT_ONCE", 2)


def report(sequence: int, metric: float = 0.1) -> Report:
    return Report(sequence=sequence, epoch=1, time_s=sequence, energy_j=sequence, metric=metric)


def converge(job_id: str = "job", reports: int = 4) -> int:
    """A trial from its start to its target; its number."""
    number = optimizer.start_trial(job_id, None)[0].trial_number
    for sequence in range(1, reports):
        if optimizer.report(job_id, number, report(sequence)).decision == "stop":
            return number
    optimizer.report(job_id, number, report(reports, metric=1.0))
    return number


def register(**changes: Any) -> None:
    optimizer.register_job(JobSpec.model_validate(spec_json(beta_knob=None, **changes)))


def age(*numbers: int, by_s: float = YEAR_S) -> None:
    """Make trials, running ones too, and their events older."""
    with transaction() as connection:
        these = update(TRIALS).where(TRIALS.c.trial_number.in_(numbers))
        times = ("started_at", "ended_at", "lease_expires_at")
        connection.execute(these.values({name: TRIALS.c[name] - by_s for name in times}))
        events = update(EVENTS).where(EVENTS.c.trial_number.in_(numbers))
        connection.execute(events.values(happened_at=EVENTS.c.happened_at - by_s))


def stored(job_id: str = "job") -> Any:
    with transaction(read_only=True) as connection:
        row = select(JOBS.c["state", "trials", "events", "cost_bound"])
        return connection.execute(row.where(JOBS.c.job_id == job_id)).one()


def trial_numbers() -> list[int]:
    return [trial.trial_number for trial in optimizer.list_trials("job", limit=1000).trials]


def count(table: sa.Table) -> int:
    with transaction(read_only=True) as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def prune(keep: int = 0) -> Dropped:
    return maintenance.prune(older_than_s=180 * DAY_S, keep=keep)


@contextmanager
def after_each(act: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each statement, after it was carried out."""

    def listener(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        act(statement)

    event.listen(db.engine, "after_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(db.engine, "after_cursor_execute", listener)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_state_is_the_fold_of_what_is_left(app: Flask, portions_of_3: None, policy: str) -> None:
    register(policy=policy)
    for _ in range(8):
        converge()
    running = optimizer.start_trial("job", None)[0].trial_number
    age(*range(1, 8), running)
    before = stored()

    dropped = prune()

    assert (dropped.trials, dropped.reports, dropped.events) == (7, 28, 14)
    assert stored() == before
    assert maintenance.rebuild("job")
    optimizer.report("job", running, report(1, metric=1.0))
    assert converge() == before.trials + 1  # no number is used again
    after = stored()
    assert maintenance.rebuild("job")
    with transaction() as connection:
        connection.execute(update(JOBS).values(state={**after.state, "another": 1}))
    assert not maintenance.rebuild("job")
    assert stored() == after
    assert prune() == Dropped()


def test_trials_that_may_still_report_stay(app: Flask) -> None:
    register()
    for _ in range(3):
        converge()
    running = optimizer.start_trial("job", None)[0].trial_number
    interrupted = optimizer.start_trial("job", None)[0].trial_number
    resumable = optimizer.start_trial("job", None)[0].trial_number
    for number in (interrupted, resumable):
        optimizer.report("job", number, report(1))
        optimizer.end_trial("job", number, TrialEnd(outcome="interrupted"))
    age(1, 2, running, interrupted, resumable)
    with transaction() as connection:  # the end is old, the lease is not
        leased = update(TRIALS).where(TRIALS.c.trial_number == resumable)
        connection.execute(leased.values(lease_expires_at=time.time() + 60))

    prune()

    assert trial_numbers() == [3, running, resumable]
    optimizer.heartbeat("job", running)
    assert optimizer.report("job", running, report(1)).decision == "continue"
    assert optimizer.report("job", resumable, report(2)).decision == "continue"
    with pytest.raises(NotFound):
        optimizer.report("job", interrupted, report(2))
    assert maintenance.rebuild("job")


def test_the_latest_trials_stay_whatever_their_age(app: Flask) -> None:
    register()
    numbers = [converge() for _ in range(6)]
    age(*numbers)
    prune(keep=2)
    assert trial_numbers() == numbers[-2:]
    assert count(REPORTS) == 8
    assert count(EVENTS) == 4
    assert maintenance.rebuild("job")


def test_each_transaction_is_small(app: Flask, portions_of_3: None) -> None:
    register()
    numbers = [converge(reports=10) for _ in range(4)]
    age(*numbers[:2])
    rows = sum(map(count, (REPORTS, TRIALS, EVENTS)))
    deleted: list[int] = []

    def note(_c: Any, cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith(
            ("DELETE FROM reports", "DELETE FROM trials", "DELETE FROM events")
        ):
            deleted.append(cursor.rowcount)

    event.listen(db.engine, "after_cursor_execute", note)
    try:
        prune()
        assert trial_numbers() == numbers[2:]
        maintenance.delete_job("job")
    finally:
        event.remove(db.engine, "after_cursor_execute", note)
    assert max(deleted) <= 3
    assert sum(deleted) == rows  # nothing was left to the deletion of the job's own row


def test_it_runs_beside_trials(app: Flask, portions_of_3: None) -> None:
    register()
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
    assert trial_numbers() == list(range(11, 21))
    assert maintenance.rebuild("job")


def test_a_job_of_which_a_trial_was_started_while_it_was_being_deleted_stays(
    app: Flask, portions_of_3: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    for _ in range(4):
        converge()
    state = stored().state
    started: list[int] = []
    pause = time.sleep

    def others_turn(seconds: float) -> None:
        if not started:
            started.append(0)
            started[0] = optimizer.start_trial("job", None)[0].trial_number
        pause(seconds)

    monkeypatch.setattr(time, "sleep", others_turn)
    with pytest.raises(JobBusy):
        maintenance.delete_job("job")
    monkeypatch.undo()
    assert trial_numbers() == started == [5]
    assert maintenance.rebuild("job")
    optimizer.end_trial("job", 5, TrialEnd(outcome="withdrawn"))
    assert without_counts(stored().state) == without_counts(state)
    maintenance.delete_job("job")
    assert [count(table) for table in TABLES] == [0] * len(TABLES)


def test_a_large_job_with_running_trials_is_refused_before_anything_is_deleted(
    app: Flask, portions_of_3: None
) -> None:
    register()
    for _ in range(4):
        converge()
    optimizer.start_trial("job", None)
    before = [count(table) for table in TABLES]
    with pytest.raises(JobBusy):
        maintenance.delete_job("job")
    assert [count(table) for table in TABLES] == before
    maintenance.delete_job("job", force=True)
    assert [count(table) for table in TABLES] == [0] * len(TABLES)


def test_a_start_need_not_wait_for_a_rebuild(app: Flask) -> None:
    register()
    for _ in range(3):
        converge()
    right = stored().state
    with transaction() as connection:
        connection.execute(update(JOBS).values(state={**right, "another": 1}))
    numbers: list[int] = []

    def start(statement: str) -> None:
        if "FROM events" in statement and not numbers:
            numbers.append(0)
            numbers[0] = converge()

    with after_each(start):
        assert not maintenance.rebuild("job")
    assert numbers == [4]
    assert maintenance.rebuild("job")
    assert "another" not in stored().state


def test_a_job_that_is_registered_anew_has_no_checkpoint(app: Flask) -> None:
    register()
    for _ in range(2):
        optimizer.start_trial("job", None)
    for number in (1, 2):
        optimizer.end_trial("job", number, TrialEnd(outcome="errored"))
    age(1, 2)
    prune()
    register(monitor="another")
    assert count(CHECKPOINTS) == 0
    assert converge() == 3
    assert maintenance.rebuild("job")


@pytest.mark.parametrize("sequence", [2, 4, 6])
def test_a_state_is_not_replaced_by_the_fold_of_a_part(app: Flask, sequence: int) -> None:
    register()
    for _ in range(3):
        converge()
    before = stored()
    with transaction() as connection:
        connection.execute(sa.delete(EVENTS).where(EVENTS.c.sequence == sequence))
    with pytest.raises(IncompleteHistory, match=f"event {sequence} of job 'job'") as error:
        maintenance.rebuild("job")
    assert "runs go on" in error.value.message
    assert "rebuild" not in error.value.message  # which has just failed
    assert stored() == before


def test_an_event_that_has_taught_nothing_is_not_missed(app: Flask) -> None:
    """The start of a trial: the fold of what is left is the stored state."""
    register()
    converge()
    before = stored()
    with transaction() as connection:
        connection.execute(sa.delete(EVENTS).where(EVENTS.c.sequence == 1))
    assert maintenance.rebuild("job") is False
    assert maintenance.rebuild("job") is True
    assert stored() == before


@pytest.mark.parametrize("too_high_by", [1, 2, 4, 10**9])
@pytest.mark.parametrize("by", ["rebuild", "prune"])
def test_a_checkpoint_with_too_high_a_number_does_not_hide_what_came_after_it(
    app: Flask, portions_of_3: None, too_high_by: int, by: str
) -> None:
    register()
    for _ in range(5):
        converge()
    age(1, 2)
    prune()
    before = stored()
    with transaction() as connection:
        higher = {"sequence": CHECKPOINTS.c.sequence + too_high_by}
        connection.execute(update(CHECKPOINTS).values(higher))
    if by == "prune":
        prune()
    else:
        assert maintenance.rebuild("job") is False
    assert stored() == before
    converge()
    after = stored()
    assert maintenance.rebuild("job") is True
    assert stored() == after


def test_events_that_an_interrupted_prune_has_left_are_not_folded_again(
    app: Flask, portions_of_3: None
) -> None:
    register()
    for _ in range(5):
        converge()
    age(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "drop_events", lambda *_: 0)
        prune()
    assert (count(EVENTS), count(CHECKPOINTS)) == (10, 1)
    before = stored()
    with transaction() as connection:
        connection.execute(update(JOBS).values(state={**before.state, "another": 1}))
    assert maintenance.rebuild("job") is False
    assert stored() == before
    assert maintenance.rebuild("job") is True
    assert prune().events == 4
    assert stored() == before


@on_servers  # SQLite reads a snapshot
def test_a_job_that_is_registered_anew_while_it_is_read_has_its_own_state(app: Flask) -> None:
    register()
    number = optimizer.start_trial("job", None)[0].trial_number
    optimizer.end_trial("job", number, TrialEnd(outcome="withdrawn"))
    reads: list[str] = []

    def register_anew(statement: str) -> None:
        if statement.startswith("SELECT jobs.spec") and not reads:
            reads.append(statement)
            register(batch_sizes=[2, 4], default_batch_size=2)

    with after_each(register_anew):
        assert maintenance.rebuild("job")
    assert optimizer.start_trial("job", None)[0].batch_size == 2


MISSING = sa.delete(EVENTS).where(EVENTS.c.job_id == "a", EVENTS.c.sequence == 2)
UNREADABLE = update(JOBS).where(JOBS.c.job_id == "a").values(spec={})


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (
            MISSING,
            "event 2 of job 'a' is missing, so its state stays as it is stored; `zeus-service",
        ),
        (UNREADABLE, "the specification of job 'a' cannot be read"),
    ],
    ids=["event", "specification"],
)
def test_a_broken_job_keeps_no_other_from_being_pruned(
    app: Flask, caplog: pytest.LogCaptureFixture, damage: Any, warning: str
) -> None:
    for job_id in ("a", "job"):
        register(job_id=job_id)
        for _ in range(3):
            converge(job_id)
    age(1, 2)
    with transaction() as connection:
        connection.execute(damage)
    events = count(EVENTS)
    assert prune().events == 4
    assert maintenance.rebuild("job")
    assert warning in caplog.text
    assert count(EVENTS) == events - 4


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["prune", "delete"])
def test_sqlite_gives_the_space_back(app: Flask, database_url: str, how: str) -> None:
    register()
    number = converge()
    age(number)
    path = Path(database_url.removeprefix("sqlite:///"))
    small = path.stat().st_size
    with transaction() as connection:
        row = dict(connection.execute(select(REPORTS).limit(1)).one()._mapping)
        rows = [{**row, "sequence": n, "reason": "x" * 900} for n in range(100, 5000)]
        connection.execute(insert(REPORTS), rows)
    reader = db.engine.connect()  # the service runs on
    if how == "prune":
        maintenance.prune(older_than_s=DAY_S)
    else:
        maintenance.delete_job("job")
    assert count(REPORTS) == 0
    assert path.stat().st_size <= small
    reader.close()
