"""No web page reaches a service without tokens: other names and origins are refused."""

from pathlib import Path
from typing import Any

import pytest
import requests
from apiflask import APIFlask
from service.jobs import spec_json
from service_process import ServiceProcess
from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.db.migrate import upgrade

PATHS = ["/api/v1/jobs", "/jobs/batch_size?job_id=x", "/metrics", "/readyz", "/openapi.json", "/no"]


@pytest.fixture
def make_app(tmp_path: Path) -> Any:
    def make(**settings: Any) -> APIFlask:
        app = create_app(Config(database_url=f"sqlite:///{tmp_path}/x.sqlite3", **settings))
        upgrade(app)
        return app

    return make


def status(app: APIFlask, path: str, **headers: str) -> int:
    return app.test_client().get(path, headers=headers).status_code


def test_a_name_that_is_not_its_own_is_refused_everywhere(make_app: Any) -> None:
    app = make_app()
    names = ("evil.example", "localhost.evil.example", "0.0.0.0", "192.168.0.1", "[::]")
    for host in (*names, "evil.example:8765"):
        assert {status(app, path, Host=host) for path in PATHS} == {403}, host
        answer = app.test_client().post("/api/v1/jobs", json=spec_json(), headers={"Host": host})
        assert (answer.status_code, answer.json["code"]) == (403, "forbidden")
        assert "ZEUS_BSO_ALLOWED_HOSTS" in answer.json["detail"]


def test_its_own_names_are_taken(make_app: Any) -> None:
    app = make_app(allowed_hosts="other.example, zeus.example")
    loopback = ("localhost", "LOCALHOST:8765", "127.0.0.1:1", "127.8.8.8", "[::1]:8765")
    for host in (*loopback, "Zeus.example:1"):
        assert status(app, "/api/v1/jobs", Host=host) == 200, host


@pytest.mark.parametrize("settings", [{"token": "t" * 20}, {"insecure": True}])
def test_where_no_page_has_a_token_or_all_are_let_in_any_name_is_taken(
    make_app: Any, settings: dict[str, Any]
) -> None:
    assert status(make_app(**settings), "/readyz", Host="zeus.example") == 200
    named = make_app(**settings, allowed_hosts="zeus.example")
    assert status(named, "/readyz", Host="zeus.example") == 200
    assert status(named, "/readyz", Host="evil.example") == 403


@pytest.mark.parametrize("settings", [{}, {"insecure": True}])
def test_a_page_of_another_origin_is_refused(make_app: Any, settings: dict[str, Any]) -> None:
    app = make_app(**settings)
    for origin in ("http://[", "http://evil.example", "null", "http://localhost:3000", ""):
        assert {status(app, path, Origin=origin) for path in PATHS} == {403}, origin
    assert status(app, "/api/v1/jobs", Origin="http://localhost") == 200


def test_a_port_that_browsers_leave_out_makes_no_other_origin(make_app: Any) -> None:
    app = make_app(insecure=True)
    behind_a_proxy = {"Host": "zeus.example:443", "Origin": "https://zeus.example"}
    assert status(app, "/api/v1/jobs", **behind_a_proxy) == 200
    assert status(app, "/api/v1/jobs", **behind_a_proxy | {"Host": "zeus.example:8443"}) == 403


def test_headers_of_a_proxy_are_not_believed(service: ServiceProcess) -> None:
    jobs = f"{service.url}/api/v1/jobs"
    expected = requests.get(jobs, timeout=90).json()
    assert expected.keys() == {"jobs"}
    for name, value in {
        "SCRIPT_NAME": "/api",
        "PATH_INFO": "/healthz",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Prefix": "/api",
        "Forwarded": "host=evil.example;proto=https",
    }.items():
        answer = requests.get(jobs, headers={name: value}, timeout=90)
        assert answer.json() == expected, name


def test_the_description_names_no_host(make_app: Any) -> None:
    client = make_app(allowed_hosts="first.example").test_client()
    answers = [
        client.get("/openapi.json", headers={"Host": host})
        for host in ("first.example", "localhost")
    ]
    assert [answer.json["servers"] for answer in answers] == [[{"url": "/"}]] * 2
