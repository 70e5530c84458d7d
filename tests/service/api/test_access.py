"""Who is let in, and that secrets stay secret."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from pydantic import ValidationError
from records import hardware
from service.jobs import spec_json
from service.test_cli import one_error, zeus_service
from service_process import GUNICORN, ServiceProcess, free_port
from sqlalchemy import make_url
from waiting import LIMIT_S, wait_until
from zeus_service import create_app
from zeus_service.config import Config, load_config
from zeus_service.errors import Unusable

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError

OLD, NEW, READER = "old-writer-token", "new~writer/token+==", "token-of-a-reader"
PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that asks for tokens, and logs all it can."""
    env = {"ZEUS_BSO_TOKEN": f" {OLD},{NEW} ", "ZEUS_BSO_READ_TOKEN": READER}
    folder = tmp_path_factory.mktemp("guarded")
    with ServiceProcess(folder, workers=2, ZEUS_BSO_LOG_LEVEL="debug", **env) as service:
        yield service


def ask(
    service: ServiceProcess, method: str, path: str, authorization: str | None = None
) -> requests.Response:
    headers = {} if authorization is None else {"Authorization": authorization}
    json = spec_json() if method == "POST" else None
    return requests.request(method, service.url + path, json=json, headers=headers, timeout=LIMIT_S)


def test_each_token_may_read_and_write(guarded: ServiceProcess) -> None:
    for given in (f"Bearer {OLD}", f"Bearer {NEW}", f"bearer {OLD}"):
        assert ask(guarded, "POST", "/api/v1/jobs", given).status_code in (200, 201)
        for path in ("/api/v1/jobs", "/metrics"):
            assert ask(guarded, "GET", path, given).status_code == 200


def test_a_read_token_may_read_and_not_write(guarded: ServiceProcess) -> None:
    for path in ("/api/v1/jobs", "/metrics"):
        assert ask(guarded, "GET", path, f"Bearer {READER}").status_code == 200
    for method in ("POST", "DELETE", "PATCH"):
        path = {"POST": "/jobs", "DELETE": "/jobs/job", "PATCH": "/jobs/job/trials/1"}[method]
        answer = ask(guarded, method, f"/api/v1{path}", f"Bearer {READER}")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer x", f"Basic {OLD}", f"Bearer{OLD}", OLD, "Bearer é",
     f"Bearer {OLD[:-1]}", f"Bearer {OLD}x", f"Bearer {OLD},{NEW}", "Bearer " + "x" * 5000],
)  # fmt: skip
def test_anything_else_is_no_token(guarded: ServiceProcess, authorization: str | None) -> None:
    for method, path in (("GET", "/api/v1/jobs"), ("POST", "/api/v1/jobs"), ("GET", "/metrics")):
        headers = {} if authorization is None else {"Authorization": authorization.encode()}
        answer = requests.request(method, guarded.url + path, headers=headers, timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer ")


def test_without_a_token_only_these_routes_answer(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path / 'x.sqlite3'}", token=OLD))
    client = app.test_client()
    is_open = set()
    for rule in app.url_map.iter_rules():
        path = rule.rule.replace("<job_id:job_id>", "job")
        path = re.sub(r"<int\(.*?>", "1", path)
        for method in (rule.methods or set()) - {"OPTIONS", "HEAD"}:
            answer = client.open(path, method=method, json={} if method != "GET" else None)
            if answer.status_code != 401:
                is_open.add(rule.rule)
    of_the_page = {"/sign-in", "/assets/<path:filename>"}
    assert is_open == {"/healthz", "/readyz", "/openapi.json", *of_the_page}


def test_the_client_says_what_to_do_about_a_token(guarded: ServiceProcess) -> None:
    for token, status, remedy in (
        (None, 401, r"set \$ZEUS_BSO_TOKEN"),
        ("wrong", 401, r"set \$ZEUS_BSO_TOKEN"),
        (READER, 403, "read-only; use one that may write"),
    ):
        with pytest.raises(ZeusServiceError, match=f"HTTP {status}.*{remedy}") as error:
            BSOClient(guarded.url, token).start_trial("job", "key", hardware())
        assert error.value.fields["status"] == status
    BSOClient(guarded.url, NEW).start_trial("job", "key", hardware())


def test_no_token_is_ever_logged(guarded: ServiceProcess) -> None:
    """Runs after the others of this module, so their requests are in the log, too."""
    almost = f"{OLD}-mistyped"
    for request in (
        f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization Bearer {almost}\r\n\r\n",
        f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {almost}\x00\r\n\r\n",
        f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nBearer {almost}: x\r\n\r\n",
        f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer\r\n {almost}\r\n\r\n",
        f"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {almost}\r\n",
        f"Bearer {almost}\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", guarded.port), timeout=LIMIT_S) as connection:
            connection.sendall(request.encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(10_000)
    log = guarded.log.read_text()
    assert "Invalid request from" in log
    assert "premature client disconnection" in log
    for secret in (OLD, NEW, READER):
        assert secret not in log


def gunicorn(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run gunicorn itself with the service's configuration, until it ends."""
    return subprocess.run(
        [*GUNICORN, f"--bind=0.0.0.0:{free_port()}"],
        env=os.environ | {"ZEUS_BSO_DATABASE_URL": f"sqlite:///{folder / 'x.sqlite3'}", **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def check_that_it_refuses(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode != 0
    (message,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
    assert "ZEUS_BSO_TOKEN" in message
    assert "Traceback" not in result.stderr
    assert PASSWORD not in result.stdout + result.stderr


def test_without_a_token_it_listens_on_loopback_only(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite3'}"
    served = zeus_service("serve", f"--bind=[::]:{free_port()}", database_url=url)
    check_that_it_refuses(served)
    check_that_it_refuses(gunicorn(tmp_path))


def test_without_a_token_it_listens_anywhere_if_that_is_asked_for(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, ZEUS_BSO_INSECURE="1")
    service.bind_to("0.0.0.0")
    with service:
        pass


def test_secrets_may_be_in_files(tmp_path: Path) -> None:
    database = tmp_path / "other.sqlite3"
    secrets = {"TOKEN": OLD, "READ_TOKEN": READER, "DATABASE_URL": f"sqlite:///{database}"}
    env = {}
    for name, content in secrets.items():
        (tmp_path / name).write_text(f"{content}\n")
        env |= {f"ZEUS_BSO_{name}_FILE": str(tmp_path / name), f"ZEUS_BSO_{name}": ""}
    with ServiceProcess(tmp_path, **env) as service:
        assert database.exists()
        for token, status in ((OLD, 201), (READER, 403), ("neither-of-the-two", 401)):
            assert ask(service, "POST", "/api/v1/jobs", f"Bearer {token}").status_code == status


@pytest.mark.parametrize("name", ["TOKEN", "READ_TOKEN", "DATABASE_URL"])
def test_an_unusable_secrets_file_is_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def error(path: Path) -> str:
        monkeypatch.setenv(f"ZEUS_BSO_{name}_FILE", str(path))
        with pytest.raises(Unusable) as error:
            load_config()
        return str(error.value)

    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text(" \n")
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere", tmp_path, empty, binary):
        assert f"ZEUS_BSO_{name}_FILE" in error(path)
        assert str(path) in error(path)
    monkeypatch.setenv(f"ZEUS_BSO_{name}", PASSWORD)
    assert "both set" in error(empty)
    assert PASSWORD not in error(empty)


@pytest.mark.parametrize("password", [PASSWORD, "p@ss:w/rd%20?#", "é"])
def test_the_databases_password_may_come_apart_from_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    secret = tmp_path / "password"
    secret.write_text(f"{password}\n")
    monkeypatch.setenv("ZEUS_BSO_DATABASE_URL", "mysql://zeus@database/zeus")
    monkeypatch.setenv("ZEUS_BSO_DATABASE_PASSWORD_FILE", str(secret))
    config = load_config()
    url = make_url(config.database_url)
    assert (url.username, url.password, url.host) == ("zeus", password, "database")
    assert password not in repr(config) + config.shown_database


WEAK = "0123456789abcde"
INVALID = [
    ("ZEUS_BSO_TOKEN", WEAK),
    ("ZEUS_BSO_TOKEN", f"{OLD},{WEAK}"),
    ("ZEUS_BSO_READ_TOKEN", WEAK),
    ("ZEUS_BSO_TOKEN", f"two {PASSWORD}"),
    ("ZEUS_BSO_DATABASE_URL", f"postgresql+psycopg://u:p@x:{PASSWORD}@h/db"),
    ("ZEUS_BSO_TOKEN", " , "),
    ("ZEUS_BSO_READ_TOKEN", f"{PASSWORD},naïve"),
    ("ZEUS_BSO_DATABASE_URL", f"postgresql//u:{PASSWORD}@h/db"),
    ("ZEUS_BSO_DATABASE_URL", f"postgresql+psycopg://u:p@{PASSWORD}@h/db"),
    ("ZEUS_BSO_DATABASE_URL", f"oracle://u:{PASSWORD}@h/db"),
    ("ZEUS_BSO_DATABASE_URL", "sqlite://"),
    ("ZEUS_BSO_DATABASE_URL", f"sqlite:////tmp/x.sqlite3?timeout={PASSWORD}"),
    ("ZEUS_BSO_DATABASE_URL", f"sqlite://u:{PASSWORD}@h/x.sqlite3"),
]


@pytest.mark.parametrize(("variable", "value"), INVALID)
def test_an_invalid_secret_is_reported_by_name_alone(variable: str, value: str) -> None:
    settings = {"database_url": "sqlite:///x.sqlite3"} | {
        "database_url" if variable == "ZEUS_BSO_DATABASE_URL" else variable: value
    }
    result = zeus_service("jobs", **settings)
    assert variable in one_error(result)
    if "TOKEN" in variable:
        assert "at least 16 printable ASCII characters" in result.stderr
    for secret in (PASSWORD, WEAK):
        assert secret not in result.stdout + result.stderr


def test_a_token_that_may_write_is_no_read_token() -> None:
    with pytest.raises(ValidationError, match="use different tokens"):
        Config(token=OLD, read_token=f"{READER},{OLD}")
    assert Config(token=OLD, read_token=READER).has_tokens


def test_gunicorn_does_not_start_a_service_with_an_invalid_secret(tmp_path: Path) -> None:
    check_that_it_refuses(gunicorn(tmp_path, ZEUS_BSO_TOKEN=f"two {PASSWORD}"))


def test_a_dotenv_file_that_is_no_text_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    monkeypatch.chdir(tmp_path)
    error = one_error(zeus_service("jobs", database_url="sqlite:///x.sqlite3"))
    assert "the .env file is not UTF-8" in error


@pytest.mark.parametrize(
    ("url", "logged"),
    [
        *(
            (f"{scheme}://nobody:{PASSWORD}@127.0.0.1:1/nothing", "127.0.0.1")
            for scheme in ("postgresql+psycopg", "postgres", "mysql", "mariadb")
        ),
        ("sqlite:///empty.sqlite3", "is empty"),
        ("sqlite:////nowhere/nothing", "no database at /nowhere/nothing"),
    ],
)
def test_only_the_log_says_which_database_refuses_and_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    url: str,
    logged: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.sqlite3").touch()
    client = create_app(Config(database_url=url, token=OLD)).test_client()
    for path in ("/readyz", "/api/v1/jobs"):
        answer = client.get(path, headers={"Authorization": f"Bearer {OLD}"})
        assert (answer.status_code, answer.json["code"]) == (503, "unavailable")
        assert answer.mimetype == "application/problem+json"
        assert answer.headers["Retry-After"] == "1"
        assert answer.json["detail"] == "the database is unavailable; see the service's log"
        words = (PASSWORD, "127.0.0.1", "nobody", "nothing", "empty", "nowhere")
        assert not any(word in answer.text for word in words)
    assert logged in caplog.text
    assert PASSWORD not in caplog.text


def test_an_application_of_ones_own_lets_nobody_else_in_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"ZEUS_BSO_TOKEN={OLD}\n")
    (tmp_path / "own.py").write_text("from zeus_service import create_app\napp = create_app()\n")
    service = ServiceProcess(tmp_path, gunicorn=True, application="own:app")
    service.bind_to("0.0.0.0")
    with service:
        (tmp_path / ".env").write_text("")
        (killed,) = service.workers()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: service.workers() not in ([], [killed]), service.log.read_text)
        assert ask(service, "GET", "/api/v1/jobs").status_code == 401
