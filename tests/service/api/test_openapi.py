"""The OpenAPI description says what the service does, as schemathesis finds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from apiflask import APIFlask
from service.conftest import on_sqlite
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("openapi")
    env = {"ZEUS_BSO_TOKEN": "one-that-may-write", "ZEUS_BSO_READ_TOKEN": "one-that-may-read"}
    with ServiceProcess(folder, workers=2, **env) as service:
        yield service


def test_every_request_gets_an_answer_that_is_described(guarded: ServiceProcess) -> None:
    """Statuses, types, schemas and headers are described, bad data and bad tokens are refused.

    Not checked: that all data the schema allows is taken. JSON Schema cannot say that
    `default_batch_size` is one of `batch_sizes`.
    """
    result = subprocess.run(
        [BIN / "schemathesis", "run", f"{guarded.url}/openapi.json", "--no-color",
         "--header=Authorization: Bearer one-that-may-write", "--phases=coverage,fuzzing",
         "--generation-deterministic", "--max-examples=4", "--suppress-health-check=all",
         "--checks=all", "--exclude-checks=positive_data_acceptance"],
        env={**os.environ, "SCHEMATHESIS_HOOKS": ""},
        cwd=guarded.log.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    routes = requests.get(f"{guarded.url}/openapi.json", timeout=LIMIT_S).json()["paths"]
    operations = sum(len(operations) for operations in routes.values())
    assert f"Tested: {operations}" in result.stdout
    assert "Traceback" not in guarded.log.read_text()


@on_sqlite
def test_the_description_is_valid_openapi(app: APIFlask) -> None:
    assert isinstance(app.spec, dict)
    schemathesis.openapi.from_dict(app.spec).validate()
