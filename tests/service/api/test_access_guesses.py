"""Refused tokens are counted and logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from zeus_service import counters, create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

TOKEN = "a-valid-token-of-this-service"


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", token=TOKEN))
    upgrade(app)
    return app.test_client()


def refused() -> float:
    found = counters.REGISTRY.get_sample_value("zeus_bso_tokens_refused_total", {"where": "api"})
    assert found is not None
    return found


def test_every_place_that_takes_a_token_counts_and_logs_a_wrong_one(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    bearer = {"Authorization": "Bearer a-guess"}
    for path in ("/api/v1/jobs", "/metrics", "/", "/jobs/batch_size?job_id=x"):
        before = refused()
        client.get(path, headers=bearer)
        assert refused() == before + 1, path
    before = refused()
    client.get("/jobs/batch_size?job_id=x", auth=("zeus", "a-guess"))
    assert refused() == before + 1
    assert caplog.text.count("a token was refused") == 5
    assert {record.fields["address"] for record in caplog.records if "refused" in record.msg} == {
        "127.0.0.1"
    }
    assert "a-guess" not in caplog.text


def test_a_request_without_a_token_guesses_nothing(client: FlaskClient) -> None:
    before = refused()
    for path in ("/api/v1/jobs", "/metrics", "/", "/jobs/batch_size?job_id=x"):
        client.get(path)
    assert refused() == before
