"""Run migrations on the application's database; called by Alembic."""

from __future__ import annotations

from alembic import context
from flask import current_app

from zeus_service.extensions import db

with db.engine.connect() as connection:
    if connection.dialect.name == "sqlite":
        # Altering a table there means making a new one and dropping the old, whose rows would take
        # their children along. Before the transaction; this connection is not used again.
        connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
    context.configure(
        connection=connection,
        target_metadata=db.metadata,
        # One transaction over all revisions: on SQLite it holds the write lock, so that two
        # services that start on one new file migrate it once.
        transactional_ddl=connection.dialect.name != "mysql",
        **current_app.extensions["migrate"].configure_args,
    )
    with context.begin_transaction():
        context.run_migrations()
