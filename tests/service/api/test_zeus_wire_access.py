"""Who is let in on the wire of the Zeus project's own server: its clients send passwords."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from flask import Flask
from service.api.wires import zeus_job
from werkzeug.test import create_environ, run_wsgi_app
from zeus_service import create_app
from zeus_service.api import access
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

TOKENS = {"token": "old~t/o:ken-of-some,n@w%40-of-a-writer", "read_token": "one-that-may-read"}
REQUESTS = ["POST /jobs", "GET /jobs/batch_size", "POST /report", "PATCH /trials", "DELETE /jobs"]


@pytest.fixture(autouse=True)
def refuse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REFUSAL_S", 0.0)


def with_password(app: Flask, method_and_path: str, user: str, password: str) -> tuple[int, str]:
    """The status of a request by httpx with a user and a password in its URL, and the message."""
    userinfo = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    method, path = method_and_path.split()
    with httpx.Client(transport=httpx.WSGITransport(app=app)) as client:
        url = f"http://{userinfo}host{path}?job_id=zeus-job"
        response = client.request(method, url, content=json.dumps(zeus_job()))
    body = response.json()
    if response.status_code == 401:
        assert response.headers["WWW-Authenticate"] == "Basic realm=zeus-service"
        assert set(body) == {"message"}
    return response.status_code, body.get("message", "")


@pytest.mark.parametrize("user", ["zeus", "any one", "", "é"])
def test_a_token_is_the_password_in_the_clients_url(tmp_path: Path, user: str) -> None:
    url = f"sqlite:///{tmp_path}/x.sqlite3"
    app = create_app(Config(database_url=url, **TOKENS))
    upgrade(app)
    for token in ("old~t/o:ken-of-some", "n@w%40-of-a-writer"):
        statuses = [with_password(app, each, user, token)[0] for each in REQUESTS]
        assert statuses == [201, 200, 422, 422, 200]


@pytest.mark.parametrize(
    ("user", "password"),
    [("", ""), ("zeus", "wrong"), ("zeus", ""), ("n@w%40-of-a-writer", "x"), ("z", "é")],
)
def test_a_request_without_a_token_is_told_how_to_send_one(
    tmp_path: Path, user: str, password: str
) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **TOKENS))
    for each in REQUESTS:
        status, message = with_password(app, each, user, password)
        assert status == 401
        assert "http://zeus:TOKEN@HOST" in message


def test_without_a_token_no_body_is_read(tmp_path: Path) -> None:
    class Body(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise AssertionError("the body is read")

        readinto = readline = readlines = read

    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **TOKENS))
    chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    environ = {**create_environ("/jobs", method="POST"), **chunked, "wsgi.input": Body()}
    environ.pop("CONTENT_LENGTH", None)
    assert run_wsgi_app(app, environ)[1] == "401 UNAUTHORIZED"


def test_a_token_that_may_only_read_starts_nothing_on_the_wire(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **TOKENS))
    for each in REQUESTS:
        assert with_password(app, each, "zeus", "one-that-may-read") == (
            403,
            "this token is read-only; use one that may write",
        )


@pytest.mark.parametrize("header", ["Basic", "Basic !", "Basic enp6", "Basic /w==", "Bearer", "x"])
def test_a_malformed_authorization_is_refused(tmp_path: Path, header: str) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **TOKENS))
    answer = app.test_client().get("/jobs/batch_size", headers={"Authorization": header})
    assert answer.status_code == 401


def test_the_other_wire_takes_no_passwords(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **TOKENS))
    client = app.test_client()
    assert client.get("/api/v1/jobs", auth=("zeus", "n@w%40-of-a-writer")).status_code == 401
