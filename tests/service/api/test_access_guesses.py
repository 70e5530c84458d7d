"""Guesses at tokens are counted, and those of one address wait for one another."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from flask.testing import FlaskClient
from service_process import ServiceProcess
from waiting import LIMIT_S
from zeus_service import counters, create_app
from zeus_service.api import access
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

TOKEN = "a-valid-token-of-this-service"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("guarded"), ZEUS_BSO_TOKEN=TOKEN) as service:
        yield service


def ask(service: ServiceProcess, token: str = "a-guess", path: str = "/api/v1/jobs") -> float:
    """Send a token; when the answer came."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(service.url + path, headers=headers, timeout=LIMIT_S)
    assert answer.status_code == (200 if token == TOKEN else 401)
    return time.monotonic()


def test_refusals_to_one_address_take_turns(guarded: ServiceProcess) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(access.MAX_WAITING) as pool:
        answered = sorted(pool.map(lambda _: ask(guarded), range(access.MAX_WAITING)))
    for number, instant in enumerate(answered, 1):
        assert instant - began >= 0.95 * number * access.REFUSAL_S


def test_a_flood_of_guesses_delays_no_valid_token_and_is_bounded(guarded: ServiceProcess) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(51) as pool:
        guesses = [pool.submit(ask, guarded) for _ in range(50)]
        answered = ask(guarded, TOKEN)
        refused = sorted(each.result() for each in guesses)
    delayed = [instant for instant in refused if instant - began >= 0.95 * access.REFUSAL_S]
    assert answered < delayed[2]  # of five
    assert time.monotonic() - began < 3 * access.MAX_WAITING * access.REFUSAL_S
    scraped = requests.get(
        f"{guarded.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=LIMIT_S
    )
    counted = re.search(r'zeus_bso_tokens_refused_total{where="api"} (\S+)', scraped.text)
    assert counted
    assert float(counted[1]) >= 50
    assert "a token was refused address=127.0.0.1" in guarded.log.read_text()
    assert "a-guess" not in guarded.log.read_text()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setattr(access, "REFUSAL_S", 0.05)
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", token=TOKEN))
    upgrade(app)
    return app.test_client()


def refused() -> float:
    found = counters.REGISTRY.get_sample_value("zeus_bso_tokens_refused_total", {"where": "api"})
    assert found is not None
    return found


def test_every_place_that_takes_a_token_counts_a_wrong_one_and_not_that_there_is_none(
    client: FlaskClient,
) -> None:
    bearer = {"Authorization": "Bearer a-guess"}
    for path in ("/api/v1/jobs", "/metrics", "/", "/jobs/batch_size?job_id=x"):
        before = refused()
        client.get(path, headers=bearer)
        client.get(path)
        assert refused() == before + 1, path
    before = refused()
    client.get("/jobs/batch_size?job_id=x", auth=("zeus", "a-guess"))
    assert refused() == before + 1


def test_refusals_hold_few_connections_from_however_many_addresses(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(access, "REFUSAL_S", 100.0)
    monkeypatch.setattr(access, "_turns", {})
    monkeypatch.setattr(time, "sleep", waits.append)
    for number in range(2 * access.MAX_ADDRESSES):
        for _ in range(2 * access.MAX_WAITING):
            client.get(
                "/api/v1/jobs",
                headers={"Authorization": "Bearer a-guess"},
                environ_overrides={"REMOTE_ADDR": f"10.0.0.{number}"},
            )
    assert len(waits) == access.MAX_ADDRESSES * access.MAX_WAITING
    assert max(waits) <= access.MAX_WAITING * access.REFUSAL_S
