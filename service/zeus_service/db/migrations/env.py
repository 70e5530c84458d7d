"""Run migrations on the application's database, or print them; called by Alembic."""

from alembic import context
from flask import current_app
from sqlalchemy import Connection, text

from zeus_service.db.tables import db

LOCK = "zeus_service migrations"


def lock(connection: Connection) -> None:
    """Let one process at a time migrate; the others find the work done. Closing it unlocks."""
    connection.detach()  # the pool must not reuse it
    match connection.dialect.name:
        case "sqlite":  # the transaction takes the write lock
            cursor = connection.connection.cursor()
            cursor.execute("PRAGMA busy_timeout = 30000")
            # Altering a table means creating another and dropping the old one, which would delete
            # the rows that refer to it. This cannot be set within the transaction.
            cursor.execute("PRAGMA foreign_keys = OFF")
        case "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_lock(hashtext(:lock))"), {"lock": LOCK})
            connection.commit()
        case "mysql":
            connection.execute(text("SELECT GET_LOCK(:lock, 86400)"), {"lock": LOCK})
            connection.commit()


def run(connection: Connection | None) -> None:
    context.configure(
        connection=connection,
        dialect_name=db.engine.dialect.name,
        literal_binds=connection is None,
        target_metadata=db.metadata,
        # One transaction for all revisions, if the database supports it.
        transactional_ddl=db.engine.dialect.name != "mysql",
        **current_app.extensions["migrate"].configure_args,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run(None)
else:
    with db.engine.connect() as connection:
        lock(connection)
        run(connection)
