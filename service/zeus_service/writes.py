"""Writes that belong together, in as few round trips as the database allows.

PostgreSQL carries them out as one statement, each in a common table expression (WITH). A statement
is a transaction by itself there: a report that goes on takes two round trips in place of five.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    func,
    insert,
    literal_column,
    select,
)

Write = Update | Table
"""A table stands for the insertion of a row."""


class Writes:
    """A write, and others that are carried out only if the first one has changed a row.

    Made once and carried out many times: making a statement takes longer than carrying it out.

    Args:
        first: An update, or a table: the insertion of a row into it.
        then: Likewise.
    """

    def __init__(self, first: Write, *then: Write) -> None:
        self._first = _statement(first)
        self._then = then

    def carry_out(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Carry them out.

        Args:
            connection: In a transaction, unless it is one to PostgreSQL.
            values: Of the parameters; see `named`.

        Returns:
            Whether the first one has changed a row.
        """
        if connection.dialect.name == "postgresql":
            return bool(connection.execute(self._together, values).scalar_one())
        if not connection.execute(self._first, values).rowcount:
            return False
        for write in self._then:
            connection.execute(_statement(write), values)
        return True

    @cached_property
    def _together(self) -> Select[int]:
        one: ColumnElement[int] = literal_column("1")
        first = self._first.returning(one).cte("first")
        changed = select(one).select_from(first)

        def if_changed(write: Write) -> Insert | Update:
            if isinstance(write, Update):
                return write.where(changed.exists())
            row = _parameters(write)
            return insert(write).from_select([*row], select(*row.values()).select_from(first))

        others = [if_changed(write).cte(f"then_{n}") for n, write in enumerate(self._then)]
        return select(func.count()).select_from(first).add_cte(*others)


def _statement(write: Write) -> Insert | Update:
    return write if isinstance(write, Update) else insert(write).values(_parameters(write))


def _parameters(table: Table) -> dict[str, Any]:
    return {column.name: parameter(table, column.name) for column in table.c}


def parameter(table: Table, column: str) -> BindParameter[Any]:
    """What stands for a column's new value."""
    return bindparam(f"{table.name}_{column}", type_=table.c[column].type)


def named(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """A row's values, by the names of their parameters."""
    return {f"{table.name}_{column}": value for column, value in values.items()}
