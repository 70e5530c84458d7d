"""The application in this process, on each of the databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from databases import DATABASES, migrated_database
from flask import Flask
from service_process import ServiceProcess
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.tables import db


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database at the head revision, of each kind in turn."""
    with migrated_database(request.param, tmp_path) as url:
        yield url


@contextmanager
def application(database_url: str) -> Iterator[Flask]:
    """An application within its context."""
    app = create_app(Config(database_url=database_url))
    with app.app_context():
        yield app
        db.engine.dispose()


@pytest.fixture
def app(database_url: str) -> Iterator[Flask]:
    """An application on a new database of each kind, within its context."""
    with application(database_url) as app:
        yield app


@pytest.fixture(scope="module", params=DATABASES)
def any_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A running service on each kind of database, which a module's tests share."""
    folder = tmp_path_factory.mktemp("service")
    with (
        migrated_database(request.param, folder) as url,
        ServiceProcess(folder, database_url=url) as process,
    ):
        yield process
