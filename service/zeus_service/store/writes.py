"""Writes that belong together, in as few round trips as the database allows.

PostgreSQL executes them as one statement, each in a common table expression (WITH). There, a
statement is a transaction by itself: a report after which its run continues takes two round trips
instead of five.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Insert, Table, TableClause, Update

from zeus_service.store.clock import unix_now

Write = Update | Table
"""A table stands for the insertion of a row."""

_NOW = ("created_at", "updated_at", "started_at", "reported_at", "happened_at")


class Writes:
    """A write, and others that are executed only if the first one has changed a row."""

    def __init__(self, first: Write, *then: Write) -> None:
        self._first = statement(first)
        self._then = [statement(write) for write in then]

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Execute them in a transaction; on PostgreSQL they need none.

        Returns:
            Whether the first one has changed a row. If not, nothing has been written.
        """
        if connection.dialect.name == "postgresql":
            return bool(connection.execute(self._together, values).scalar_one())
        if not connection.execute(self._first, values).rowcount:
            return False
        for write in self._then:
            connection.execute(write, values)
        return True

    @cached_property
    def _together(self) -> sa.Select[int]:
        one: sa.ColumnElement[int] = sa.literal_column("1")
        first = self._first.returning(one).cte("first")
        changed = sa.select(one).select_from(first)

        def if_changed(write: Insert | Update) -> Insert | Update:
            if isinstance(write, Update):
                return write.where(changed.exists())
            row = parameters(write.table)
            source = sa.select(*row.values()).select_from(first)
            return sa.insert(write.table).from_select([*row], source)

        others = [if_changed(write).cte(f"then_{n}") for n, write in enumerate(self._then)]
        return sa.select(sa.func.count()).select_from(first).add_cte(*others)


def statement(write: Write) -> Insert | Update:
    """The statement of a write, with `parameters` for an insertion."""
    return write if isinstance(write, Update) else sa.insert(write).values(parameters(write))


def parameters(table: TableClause, *columns: str) -> dict[str, sa.ColumnElement[Any]]:
    """New values of columns, by column; without `columns`, of all.

    Instants are the database's: when the row is written, or for `ended_at` if it has an outcome.
    The others are bound parameters; that for when a lease expires is in seconds from now.
    """
    values: dict[str, sa.ColumnElement[Any]] = {
        name: sa.bindparam(f"{table.name}_{name}", type_=table.c[name].type)
        for name in columns or table.c.keys()
    }
    values |= {name: unix_now() for name in values if name in _NOW}
    if "lease_expires_at" in values:
        values["lease_expires_at"] = unix_now() + values["lease_expires_at"]
    if "ended_at" in values:
        values["ended_at"] = sa.case((values["outcome"].is_not(None), unix_now()))
    return values


def bind_values(table: TableClause, values: Mapping[str, Any]) -> dict[str, Any]:
    """New values of a table's columns, by the names of their bound parameters."""
    return {f"{table.name}_{column}": value for column, value in values.items()}
