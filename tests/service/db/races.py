"""Transactions that come between the statements of another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from databases import DATABASES
from service.jobs import spec_json
from sqlalchemy import Connection, event, select, update
from zeus_service import messages, optimizer
from zeus_service.bandit.spec import JobSpec
from zeus_service.db.tables import JOBS, db
from zeus_service.db.transactions import (
    transaction,
)

SERVERS = DATABASES[1:]
on_servers = pytest.mark.parametrize("database_url", SERVERS, indirect=True)


def register(job_id: str) -> None:
    optimizer.register_job(JobSpec.model_validate(spec_json(job_id=job_id)))


def trials_of(job_id: str) -> int:
    """A number in the job's row, which these tests count with."""
    with transaction(read_only=True) as connection:
        return connection.execute(select(JOBS.c.trials).where(JOBS.c.job_id == job_id)).scalar_one()


def add_one(connection: Connection, job_id: str) -> None:
    connection.execute(update(JOBS).where(JOBS.c.job_id == job_id).values(trials=JOBS.c.trials + 1))


@contextlib.contextmanager
def just_before(words: str, other: Callable[[], object]) -> Iterator[None]:
    """Have another transaction carried out just before the first statement with these words."""
    others = [other]

    def carry_out(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if words in statement and others:
            others.pop()()

    event.listen(db.engine, "before_cursor_execute", carry_out)
    yield
    event.remove(db.engine, "before_cursor_execute", carry_out)
    assert not others


def just_before_the_trial_is_written(
    other: Callable[[], object],
) -> contextlib.AbstractContextManager[None]:
    """Have another transaction carried out between a use case's reading a trial and writing it."""
    return just_before("UPDATE trials", other)


def errored() -> None:
    optimizer.end_trial("job", 1, messages.TrialEnd(outcome="errored"))


def report(sequence: int, metric: float = 0.1) -> messages.Decision:
    figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 1.0, "metric": metric}
    return optimizer.report("job", 1, messages.Report(sequence=sequence, **figures))
