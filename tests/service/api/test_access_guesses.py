"""Guesses at tokens are counted and logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from zeus_service import counters, create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

PATHS = ("/api/v1/jobs", "/metrics", "/", "/jobs/batch_size?job_id=x")


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    url = f"sqlite:///{tmp_path}/x.sqlite3"
    app = create_app(Config(database_url=url, token="a-valid-token-of-this-service"))
    upgrade(app)
    return app.test_client()


def refused() -> float:
    found = counters.REGISTRY.get_sample_value("zeus_bso_tokens_refused_total", {"where": "api"})
    assert found is not None
    return found


def test_every_place_that_takes_a_token_counts_a_wrong_one(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    guesses = [(path, {"headers": {"Authorization": "Bearer a-guess"}}) for path in PATHS]
    guesses.append((PATHS[-1], {"auth": ("zeus", "a-guess")}))
    for path, sent in guesses:
        before = refused()
        client.get(path, **sent)
        assert refused() == before + 1, path
    assert caplog.text.count("a token was refused") == len(guesses)
    assert "a-guess" not in caplog.text


def test_a_request_without_a_token_guesses_nothing(client: FlaskClient) -> None:
    before = refused()
    for path in PATHS:
        client.get(path)
    assert refused() == before
