"""Run migrations on the application's database, or print them; called by Alembic."""

from __future__ import annotations

from alembic import context
from flask import current_app
from sqlalchemy import Connection, create_engine, text

from zeus_service.extensions import db

LOCK = "zeus_service migrations"


def configure(connection: Connection | None) -> None:
    context.configure(
        connection=connection,
        dialect_name=db.engine.dialect.name,
        literal_binds=connection is None,
        target_metadata=db.metadata,
        # One transaction over all revisions, where the database can: on SQLite it holds the write
        # lock, so that two services that start on one new file migrate it once.
        transactional_ddl=db.engine.dialect.name != "mysql",
        **current_app.extensions["migrate"].configure_args,
    )


def run(connection: Connection) -> None:
    connection.detach()  # it is closed at the end, not used again, and gives its lock back
    match connection.dialect.name:
        case "sqlite":
            # Altering a table there means making a new one and dropping the old, whose rows would
            # take their children along. Before the transaction.
            connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
        case "postgresql":  # of several that migrate at once, one does, and the others find it done
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_lock(hashtext(:lock))"), {"lock": LOCK})
            connection.commit()
        case "mysql":
            connection.execute(text("SELECT GET_LOCK(:lock, 86400)"), {"lock": LOCK})
            connection.commit()
    configure(connection)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    configure(None)
    with context.begin_transaction():
        context.run_migrations()
elif db.engine.dialect.name == "mysql":
    # A revision may take longer than any request.
    url = db.engine.url.update_query_dict({"read_timeout": "86400"})
    with create_engine(url).connect() as connection:
        run(connection)
else:
    with db.engine.connect() as connection:
        run(connection)
