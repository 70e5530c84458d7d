"""A client of the wire, version 1, on each of the databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from service.api.wires import Api
from service.jobs import START, spec_json
from service_process import ServiceProcess

_numbers = itertools.count()


@pytest.fixture(scope="module")
def api(any_service: ServiceProcess) -> Iterator[Api]:
    api = Api(any_service.url)
    yield api
    api.session.close()


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
