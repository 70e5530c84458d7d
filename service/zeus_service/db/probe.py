"""Whether the database takes writes: a row is written to every table, and rolled back."""

import uuid
from contextlib import suppress
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from zeus_service.db.engine import SQLITE_BUSY, error_code
from zeus_service.db.tables import JOBS, TRIALS, db
from zeus_service.db.transactions import transaction

_LARGE = {"": "x" * 16_384}
"""Takes pages of its own: SQLite has to find room for them."""


class _RollBack(Exception):
    pass


def write_and_roll_back() -> None:
    """Write to every table within the application's context; nothing of it stays.

    It does not wait its turn behind others. On SQLite, a file that another transaction has locked
    counts as written; and since a full disk shows only at a commit, an unchanged number is
    committed.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The database cannot be written.
    """
    try:
        with suppress(_RollBack), transaction() as connection:
            _write(connection)
        if db.engine.dialect.name == "sqlite":
            with transaction() as connection:
                connection.exec_driver_sql("PRAGMA user_version = 0")
    except DBAPIError as error:
        if error_code(error.orig) != SQLITE_BUSY:
            raise


def _write(connection: sa.Connection) -> NoReturn:
    # No job's, since it has a control character; as long as the shortest of these columns.
    job_id = f"\x01{uuid.uuid4().hex}"[:32]

    def value(column: sa.Column[Any]) -> Any:
        if column.name in ("job_id", "idempotency_key", "name"):
            return job_id
        return {} if isinstance(column.type, sa.JSON) else column.type.python_type()

    for table in db.metadata.sorted_tables:  # jobs before what refers to them
        connection.execute(sa.insert(table), {each.name: value(each) for each in table.columns})
    large = _LARGE if connection.dialect.name == "sqlite" else {}
    connection.execute(sa.update(JOBS).where(JOBS.c.job_id == job_id).values(state=large))
    connection.execute(sa.update(TRIALS).where(TRIALS.c.job_id == job_id).values(epoch=1))
    raise _RollBack
