"""A defect of the service is told as one, on each wire, and its traceback is in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
from flask import Flask
from flask.testing import FlaskClient
from service.conftest import on_sqlite
from service.jobs import register
from sqlalchemy.exc import IntegrityError
from zeus_service import optimizer

SECRET = "a detail that only the log has"


@pytest.fixture(params=[np.linalg.LinAlgError, KeyError, "IntegrityError"])
def defective(
    request: pytest.FixtureRequest, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlaskClient]:
    """A client of a service whose use cases raise what none of them means to."""
    register()

    def fail(*_arguments: object, **_more: object) -> None:
        if request.param == "IntegrityError":
            raise IntegrityError("INSERT", {}, Exception(SECRET))
        raise request.param(SECRET)

    for name in ("describe_job", "start_trial", "report"):
        monkeypatch.setattr(optimizer, name, fail)
    return app.test_client()


@on_sqlite
@pytest.mark.parametrize(
    ("path", "mimetype", "members"),
    [
        ("/api/v1/jobs/job", "application/problem+json", {"code", "detail", "status"}),
        ("/jobs/batch_size?job_id=job", "application/json", {"message"}),
        ("/job/job", "text/html", set()),
    ],
)
def test_a_defect_is_answered_in_the_form_of_its_wire_and_logged(
    defective: FlaskClient,
    caplog: pytest.LogCaptureFixture,
    path: str,
    mimetype: str,
    members: set[str],
) -> None:
    answer = defective.get(path, headers={"Accept": "*/*" if members else "text/html"})
    assert (answer.status_code, answer.mimetype) == (500, mimetype)
    if members:
        assert members <= answer.json.keys()
        assert answer.json.get("code", "internal_server_error") == "internal_server_error"
    assert SECRET not in answer.text
    (record,) = (each for each in caplog.records if each.levelno >= logging.ERROR)
    assert record.exc_info
    assert "Traceback" in caplog.text
    assert SECRET in caplog.text
    assert defective.get("/api/v1/jobs").status_code == 200
