"""What a request costs the database: statements, and rows read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.jobs import register, report
from sqlalchemy import Connection, event, insert, select, text, update
from zeus_service import optimizer
from zeus_service.db import queries
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, Report, Trial, db

FINISHED = 2_000


@contextlib.contextmanager
def statements() -> Iterator[list[tuple[str, Any]]]:
    """The statements that are carried out meanwhile, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
        seen.append((statement, parameters))

    event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(db.engine, "before_cursor_execute", note)


@pytest.fixture
def long_history(app: Flask) -> None:
    """A job with thousands of finished trials, and one that is running."""
    register()
    add_history()


def add_history() -> None:
    optimizer.start_trial("job")
    optimizer.report("job", 1, report(1))
    with transaction() as session:
        trial = session.execute(select(Trial.__table__)).mappings().all()[-1]
        stored = session.execute(select(Report.__table__)).mappings().all()[-1]
        numbers = range(2, FINISHED + 2)
        ended = {"outcome": "converged", "ended_at": trial["started_at"], "era": 1}
        session.execute(
            insert(Trial),
            [
                {
                    **trial,
                    **ended,
                    "trial_number": number,
                    "idempotency_key": f"key-{number}",
                    "started_seq": 2 * number - 2,
                    "ended_seq": 2 * number - 1,
                }
                for number in numbers
            ],
        )
        session.execute(insert(Report), [{**stored, "trial_number": number} for number in numbers])
        session.execute(update(Job).values(trials=FINISHED + 1, sequence=2 * FINISHED + 1))


_ROWS_READ = {
    "postgresql": "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) "
    "FROM pg_stat_xact_user_tables",
    "mysql": "SHOW SESSION STATUS LIKE 'Handler_read%'",
}


def work(move: Callable[[], Any]) -> int:
    """About how many rows a use case read; on SQLite, how often it took twenty steps."""
    read = [0]
    db.engine.dispose()  # a new connection has counted nothing yet

    def count_steps(connection: Any, _record: Any) -> None:
        def count() -> None:
            read[0] += 1

        connection.set_progress_handler(count, 20)

    def ask(connection: Connection) -> None:
        found = connection.execute(text(_ROWS_READ[connection.dialect.name])).all()
        read[0] = sum(int(row[-1]) for row in found)

    listeners: list[tuple[str, Any]] = [("connect", count_steps)]
    if db.engine.name != "sqlite":
        listeners = [("commit", ask)]
    for listener in listeners:
        event.listen(db.engine, *listener)
    try:
        move()
    finally:
        for listener in listeners:
            event.remove(db.engine, *listener)
    assert read[0] > 0
    return read[0]


MOVES: dict[str, Callable[[], Any]] = {
    "report again": lambda: optimizer.report("job", 1, report(1)),
    "heartbeat": lambda: optimizer.heartbeat("job", 1),
    "report that goes on": lambda: optimizer.report("job", 1, report(2)),
    "report that ends it": lambda: optimizer.report("job", 1, report(3, metric=1.0)),
    "start": lambda: optimizer.start_trial("job", "a key"),
    "report that is stopped early": lambda: optimizer.report(
        "job", FINISHED + 2, report(1, energy_j=1e9)
    ),
    "another start": lambda: optimizer.start_trial("job", "another key"),
    "end": lambda: optimizer.end_trial("job", FINISHED + 3, "errored"),
}


def test_nothing_in_a_trials_life_costs_more_on_a_job_with_a_long_history(
    app: Flask, long_history: None
) -> None:
    for name, move in MOVES.items():
        assert work(move) < 50, name
    assert work(lambda: optimizer.list_trials("job", limit=1000)) > 300  # this does read rows


# Of the others, the statistics of their tables decide.
@on_sqlite
def test_what_pages_and_prometheus_ask_for_ever_again_reads_few_rows(
    app: Flask, long_history: None
) -> None:
    asked: list[Callable[[], Any]] = [
        lambda: queries.job_version("job"),
        lambda: queries.running_version("job"),
        lambda: queries.running_trials("job"),
        queries.list_version,
        lambda: app.test_client().get("/metrics"),
    ]
    assert [work(ask) < 50 for ask in asked] == [True] * len(asked)
