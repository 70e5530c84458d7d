"""Signing in: who may see and change what, and what the cookie is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from databases import migrated_database
from flask.testing import FlaskClient
from service.jobs import spec_json
from zeus_service import counters, create_app
from zeus_service.api import access
from zeus_service.config import Config
from zeus_service.db.tables import db
from zeus_service.pages import session

WRITE, READ = "one-that-may-write", "one-that-may-read"


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Callable[..., FlaskClient]]:
    """Clients of applications on one database, each with its own configuration."""
    with migrated_database("sqlite", tmp_path) as url:
        apps = []

        def new(**settings: Any) -> FlaskClient:
            tokens = {"token": WRITE, "read_token": READ}
            apps.append(create_app(Config(database_url=url, **{**tokens, **settings})))
            return apps[-1].test_client()

        yield new
        for app in apps:
            with app.app_context():
                db.engine.dispose()


@pytest.fixture
def client(clients: Callable[..., FlaskClient], monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """A client of a service with tokens and a job."""
    monkeypatch.setattr(access, "REFUSAL_S", 0.0)
    client = clients()
    headers = {"Authorization": f"Bearer {WRITE}"}
    assert client.post("/api/v1/jobs", json=spec_json(), headers=headers).status_code == 201
    return client


def sign_in(client: FlaskClient, token: str, **more: Any) -> Any:
    form = {"token": token, **more.pop("form", {})}
    return client.post("/sign-in", data=form, **more)


def cookie(answer: Any) -> Any:
    """The cookie that an answer sets."""
    (found,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    return found


def test_without_a_session_pages_lead_to_the_form_and_data_are_refused(client: FlaskClient) -> None:
    html = {"Accept": "text/html"}
    answer = client.get("/job/job?outcome=lost", headers=html)
    assert answer.status_code == 303
    assert answer.location == "/sign-in?next=%2Fjob%2Fjob%3Foutcome%3Dlost"
    for address in ("/job/job/figures", "/job/job/trials.csv"):
        assert client.get(address, headers={"Accept": "*/*;q=0.1"}).status_code in (303, 401)
    assert client.post("/job/job/delete", headers=html).status_code == 401
    assert client.get("/sign-in").status_code == 200


def test_a_sign_in_leads_to_the_page_of_an_id_with_reserved_characters(
    client: FlaskClient,
) -> None:
    page = "/job/why%3F%23100%25"
    answer = client.get(f"{page}?upto=3", headers={"Accept": "text/html"})
    wanted = parse_qs(urlsplit(answer.location).query)["next"][0]
    assert wanted == f"{page}?upto=3"
    assert sign_in(client, READ, form={"next": wanted}).location == wanted


@pytest.mark.parametrize("token", [READ, WRITE])
def test_a_token_begins_a_session(client: FlaskClient, token: str) -> None:
    answer = sign_in(client, token, form={"next": "/job/job?upto=3"})
    assert (answer.status_code, answer.location) == (303, "/job/job?upto=3")
    given = cookie(answer)
    assert (given["httponly"], given["samesite"], given["path"]) == (True, "Strict", "/")
    assert int(given["max-age"]) == session.MAX_AGE_S
    assert not given["secure"]
    assert token not in given.value
    for address in ("/", "/job/job", "/job/job/figures", "/job/job/trials.csv"):
        page = client.get(address)
        assert page.status_code == 200
        assert token not in page.text


def test_behind_tls_the_cookie_is_secure(client: FlaskClient) -> None:
    """A proxy ends TLS; the browser's `Origin` says that it used it."""
    answer = sign_in(client, READ, headers={"Origin": "https://localhost"})
    given = cookie(answer)
    assert given["secure"]
    assert not given["domain"]


def test_who_may_only_read_sees_and_cannot_change(client: FlaskClient) -> None:
    sign_in(client, READ)
    page = client.get("/job/job").text
    assert "read only" in page
    assert "/job/job/delete" not in page
    assert client.get("/job/job/delete").status_code == 403
    assert client.post("/job/job/delete", data={"confirm": "job"}).status_code == 403
    assert client.get("/job/job").status_code == 200


@pytest.mark.parametrize("address", ["/job/job/delete", "/sign-in", "/sign-out"])
def test_pages_of_another_origin_cannot_post(client: FlaskClient, address: str) -> None:
    """Browsers send `null` where a page hides its origin; ours say `Referrer-Policy`."""
    sign_in(client, WRITE)
    form = {"confirm": "job", "token": READ}
    answer = client.post(address, data=form, headers={"Origin": "null"})
    assert (answer.status_code, answer.headers.get("Set-Cookie")) == (403, None)
    assert client.get("/job/job").headers["Referrer-Policy"] == "same-origin"


def test_the_cookie_has_no_role(client: FlaskClient, clients: Callable[..., FlaskClient]) -> None:
    """Who may write is decided by the configuration, when it is sent."""
    given = cookie(sign_in(client, WRITE))
    demoted = clients(token="another-one-to-write", read_token=f"{READ},{WRITE}")
    demoted.set_cookie(given.key, given.value)
    assert "read only" in demoted.get("/job/job").text
    assert demoted.get("/job/job/delete").status_code == 403


def test_a_session_expires(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(client, READ)
    assert client.get("/").status_code == 200
    monkeypatch.setattr(session, "MAX_AGE_S", -1)
    assert client.get("/", headers={"Accept": "text/html"}).status_code == 303


def test_a_session_that_a_replica_began_whose_clock_is_ahead_is_one_here(
    client: FlaskClient, clients: Callable[..., FlaskClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    time_now = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: time_now() + 3600)
        given = cookie(sign_in(client, READ))
    replica = clients()
    replica.set_cookie(given.key, given.value)
    assert replica.get("/").status_code == 200


def test_a_session_ends_with_its_token(
    client: FlaskClient, clients: Callable[..., FlaskClient]
) -> None:
    given = cookie(sign_in(client, READ))
    replica, changed = clients(), clients(read_token="another-one-to-read")
    for each in (replica, changed):
        each.set_cookie(given.key, given.value)
    assert replica.get("/").status_code == 200  # the key is in the database
    assert changed.get("/", headers={"Accept": "text/html"}).status_code == 303


@pytest.mark.parametrize("value", ["", "x", "a.b.c", "W10.aaaa.bbbb", "\x00", "é" * 50])
def test_a_cookie_that_was_not_signed_here_is_none(client: FlaskClient, value: str) -> None:
    client.set_cookie("zeus", value)
    assert client.get("/", headers={"Accept": "text/html"}).status_code == 303


def test_the_interface_for_programs_takes_no_cookie(client: FlaskClient) -> None:
    sign_in(client, WRITE)
    assert client.get("/api/v1/jobs").status_code == 401
    assert client.delete("/api/v1/jobs/job").status_code == 401


def test_programs_may_send_their_token_to_the_pages(client: FlaskClient) -> None:
    for token, status in ((READ, 200), (WRITE, 200), ("a-wrong-one-of-16", 303)):
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}
        assert client.get("/", headers=headers).status_code == status


def test_a_failed_sign_in_is_counted_and_logged_without_the_token(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    before = failed()
    answer = sign_in(client, "a-wrong-one-of-many", form={"next": "/job/job"})
    assert answer.status_code == 401
    assert "This token is not valid for this service." in answer.text
    assert 'value="/job/job"' in answer.text
    assert "Set-Cookie" not in answer.headers
    assert failed() == before + 1
    assert "a token was refused" in caplog.text
    assert "a-wrong-one" not in caplog.text + answer.text


def failed() -> float:
    name = "zeus_bso_tokens_refused_total"
    return counters.REGISTRY.get_sample_value(name, {"where": "sign_in"}) or 0.0


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)",
     "/a\r\nSet-Cookie: x=y"],
)  # fmt: skip
def test_a_sign_in_leads_to_no_other_site(client: FlaskClient, address: str) -> None:
    assert sign_in(client, READ, form={"next": address}).location == "/"
