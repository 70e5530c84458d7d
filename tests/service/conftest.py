"""The application in this process, and a client of a running service, on each of the databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from databases import DATABASES, migrated_database
from flask import Flask
from service.api.wires import Api, Wire
from service.jobs import START, spec_json
from service_process import ServiceProcess
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.tables import db

_numbers = itertools.count()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database at the head revision, of each kind in turn."""
    with migrated_database(request.param, tmp_path) as url:
        yield url


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For a test of what does not depend on the database."""


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
    """A running service of two processes on each kind of database, for the tests of a module."""
    folder = tmp_path_factory.mktemp("service")
    with (
        migrated_database(request.param, folder) as url,
        ServiceProcess(folder, database_url=url, workers=2) as process,
    ):
        yield process


@pytest.fixture(scope="module")
def api(any_service: ServiceProcess) -> Iterator[Api]:
    api = Api(any_service.url)
    yield api
    api.session.close()


@pytest.fixture(scope="module")
def wire(service: ServiceProcess) -> Wire:
    return Wire(service.url)


@pytest.fixture
def job(api: Api) -> str:
    """The id of a registered job of the test's own."""
    job_id = f"api-{next(_numbers)}"
    assert api("POST", "/jobs", spec_json(job_id=job_id, policy="zeus")).status_code == 201
    return job_id


@pytest.fixture
def trial(api: Api, job: str) -> str:
    """The path of the first trial of a job of the test's own."""
    assert api("POST", f"/jobs/{job}/trials", START).status_code == 201
    return f"/jobs/{job}/trials/1"
