"""Flask extensions, made once and bound to an application in `create_app`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask_migrate import Migrate
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import Connection, Engine, MetaData, event
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Base of the tables; constraints have names, so that migrations can alter them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


db = SQLAlchemy(model_class=Base, disable_autonaming=True)
migrate = Migrate(directory="migrations")


@contextmanager
def transaction(*, read_only: bool = False) -> Iterator[Connection]:
    """A connection in a transaction that commits at the end, and rolls back on an error.

    On SQLite a writing transaction takes the write lock at once (`BEGIN IMMEDIATE`): one that
    reads first and writes later could not wait for another writer, only fail.
    """
    with db.engine.connect() as connection:
        connection = connection.execution_options(read_only=read_only)
        with connection.begin():
            yield connection


def set_up_sqlite(engine: Engine) -> None:
    """Give SQLAlchemy, not the driver, the say over SQLite's transactions."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 30000")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get("read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
