"""The application in this process, on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flask import Flask
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.database import migrate_sqlite
from zeus_service.extensions import db


@contextmanager
def migrated_app(path: Path) -> Iterator[Flask]:
    """An application on a new SQLite file, within its context."""
    app = create_app(Config(database_url=f"sqlite:///{path}"))
    migrate_sqlite(app, path)
    with app.app_context():
        yield app
        db.engine.dispose()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    """An application on a new SQLite file, within its context."""
    with migrated_app(tmp_path / "service.sqlite3") as app:
        yield app
