"""Transactions that come between the statements of another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from databases import DATABASES
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, db

SERVERS = DATABASES[1:]
on_servers = pytest.mark.parametrize("database_url", SERVERS, indirect=True)


def trials_of(job_id: str) -> int:
    """A number in the job's row, which these tests count with."""
    with transaction(read_only=True) as session:
        return session.execute(select(Job.trials).where(Job.job_id == job_id)).scalar_one()


def add_one(session: Session, job_id: str) -> None:
    session.execute(update(Job).where(Job.job_id == job_id).values(trials=Job.trials + 1))


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
