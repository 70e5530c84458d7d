"""Writes that belong together, in as few round trips as the database allows.

PostgreSQL executes them as one statement, each in a common table expression (WITH). There, a
statement is a transaction by itself: a report after which its run continues takes two round trips
instead of five.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Insert, Table, TableClause, Update
from sqlalchemy.dialects import mysql, postgresql, sqlite

from zeus_service.db.clock import unix_day, unix_now


@dataclass(frozen=True)
class Addition:
    """The insertion of a row; if there is one with its key, the other columns are added to it.

    Args:
        table: The table.
        replaced: Columns that are replaced instead.
    """

    table: Table
    replaced: tuple[str, ...] = ()

    def on(self, dialect: str) -> Insert:
        """The statement in a database's dialect, with the row as bound parameters."""
        row = parameters(self.table)
        if dialect != "mysql":
            insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
            return self._adding(insert(self.table).values(row))
        added = mysql.insert(self.table).values(row)
        return added.on_duplicate_key_update(self._sums(added.inserted))

    def from_select(self, source: sa.Select[Any]) -> Insert:
        """The statement on PostgreSQL, with the rows of a query."""
        added = postgresql.insert(self.table)
        return self._adding(added.from_select(list(self.table.columns), source))

    def _adding(self, added: postgresql.Insert | sqlite.Insert) -> Insert:
        key = list(self.table.primary_key)
        return added.on_conflict_do_update(index_elements=key, set_=self._sums(added.excluded))

    def _sums(self, given: Any) -> dict[str, Any]:
        columns = [column for column in self.table.columns if not column.primary_key]
        return {
            column.name: given[column.name]
            if column.name in self.replaced
            else given[column.name] + column
            for column in columns
        }


Write = Update | Table | Addition
"""A table stands for the insertion of a row."""

_NOW = ("created_at", "updated_at", "started_at", "reported_at", "happened_at")
_OF_REPORT_AND_TRIAL = ("epoch", "time_s", "energy_j", "metric", "cost", "outcome")


class Writes:
    """A write, and others that are executed only if the first one has changed a row."""

    def __init__(self, first: Update | Table, *then: Write) -> None:
        self._first, self._then = first, then

    def execute(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Execute them in a transaction; on PostgreSQL they need none.

        Returns:
            Whether the first one has changed a row. If not, nothing has been written.
        """
        dialect = connection.dialect.name
        if dialect == "postgresql":
            return bool(connection.execute(self._together, values).scalar_one())
        if not connection.execute(statement(self._first), values).rowcount:
            return False
        for write in self._then:
            connection.execute(statement(write, dialect), values)
        return True

    @cached_property
    def _together(self) -> sa.Select[int]:
        one: sa.ColumnElement[int] = sa.literal_column("1")
        first = statement(self._first).returning(one).cte("first")
        changed = sa.select(one).select_from(first)

        def if_changed(write: Write) -> Insert | Update:
            if isinstance(write, Update):
                return write.where(changed.exists())
            table = write.table if isinstance(write, Addition) else write
            row = parameters(table)
            source = sa.select(*row.values()).select_from(first)
            if isinstance(write, Addition):
                return write.from_select(source)
            return sa.insert(table).from_select([*row], source)

        others = [if_changed(write).cte(f"then_{n}") for n, write in enumerate(self._then)]
        return sa.select(sa.func.count()).select_from(first).add_cte(*others)


@cache
def statement(write: Write, dialect: str = "") -> Insert | Update:
    """The statement of a write, with `parameters` for an insertion."""
    if isinstance(write, Addition):
        return write.on(dialect)
    return write if isinstance(write, Update) else sa.insert(write).values(parameters(write))


def parameters(table: TableClause, *columns: str) -> dict[str, sa.ColumnElement[Any]]:
    """New values of columns, by column; without `columns`, of all.

    Instants are the database's: when the row is written, or for `ended_at` if it has an outcome.
    The others are bound parameters; that for when a lease expires is in seconds from now.
    """
    values: dict[str, sa.ColumnElement[Any]] = {
        name: sa.bindparam(_parameter(table, name), type_=table.c[name].type)
        for name in columns or table.c.keys()
    }
    values |= {name: unix_now() for name in values if name in _NOW}
    if "day" in values:
        values["day"] = unix_day()
    if "lease_expires_at" in values:
        values["lease_expires_at"] = unix_now() + values["lease_expires_at"]
    if "ended_at" in values:
        values["ended_at"] = sa.case((values["outcome"].is_not(None), unix_now()))
    return values


def bind_values(table: TableClause, values: Mapping[str, Any]) -> dict[str, Any]:
    """New values of a table's columns, by the names of their bound parameters."""
    return {_parameter(table, column): value for column, value in values.items()}


@cache
def _parameter(table: TableClause, column: str) -> str:
    """The name of the bound parameter for the new value of a column.

    Columns that always get the same value share one: psycopg parses a statement of more than 50
    parameters at each execution, which takes 2 ms.
    """
    if column == "job_id":
        return "this_job"
    if table.name == "reports" and column == "trial_number":
        return "this_trial"
    if table.name == "reports" and column in _OF_REPORT_AND_TRIAL:
        return f"trials_{column}"
    return f"{table.name}_{column}"
