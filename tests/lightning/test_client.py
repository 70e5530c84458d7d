"""`BSOClient` against the real service, and against servers that are not one."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from programs import new_job
from proxy import QuietHTTPServer
from records import hardware, job_spec, report, trial_start
from service_process import ServiceProcess, free_port

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusServiceError,
    ZeusServiceUnavailable,
)
from zeus_lightning.messages import JobSpec
from zeus_lightning.power.profile import PowerProfile


def job(**fields: Any) -> JobSpec:
    return job_spec(**({"job_id": new_job()} | fields))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that urllib3 would have waited between attempts."""
    waited: list[float] = []
    clock = SimpleNamespace(sleep=waited.append, time=time.time)
    monkeypatch.setattr("urllib3.util.retry.time", clock)
    return waited


class Server:
    """A real HTTP server that gives scripted answers: `(status, headers, body)`."""

    def __init__(self, *answers: tuple[int, dict[str, str], str]) -> None:
        self.answers = list(answers)
        self.seen: list[dict[str, Any]] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.seen.append({"headers": dict(self.headers), "path": self.path, "body": body})
                last = len(outer.answers) == 1
                status, headers, text = outer.answers[0] if last else outer.answers.pop(0)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        with QuietHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


JSON = {"Content-Type": "application/json"}
REGISTERED = json.dumps({"spec": job_spec().to_json()})


def test_a_reason_may_be_long_and_a_trial_that_is_not_there_has_no_status(
    service: ServiceProcess,
) -> None:
    client, spec = BSOClient(service.url), job()
    client.register_job(spec)
    start = client.start_trial(spec.job_id, spec.job_id, hardware())
    client.end_trial(start, "errored", "x" * 2000)
    assert client.trial_status(spec.job_id, start.trial_number + 1) is None


def test_a_refusal_carries_the_services_reasons(service: ServiceProcess) -> None:
    client = BSOClient(service.url)
    with pytest.raises(ZeusServiceError, match=r"HTTP 422.*eta_knob") as error:
        client.register_job(job(eta_knob=7.0))
    assert error.value.fields["status"] == 422
    with pytest.raises(ZeusServiceError, match="nobody-knows") as error:
        client.start_trial("nobody-knows", "key", hardware())
    assert error.value.fields["code"] == "not_found"
    with pytest.raises(ZeusServiceError, match="no job 'nobody-knows'"):
        client.power_profiles("nobody-knows", "x", 1, PowerProfile.from_json)


@pytest.mark.parametrize("status", [502, 504])
def test_a_service_that_is_unavailable_for_a_moment_is_called_again(status: int) -> None:
    server = Server((status, {}, "<html>"), (200, JSON, REGISTERED))
    with server.running() as url:
        BSOClient(f"{url}/zeus/").register_job(job())
    assert [each["path"] for each in server.seen] == ["/zeus/api/v1/jobs"] * 2


def test_a_service_that_stays_unavailable_is_an_error_with_its_status_and_may_be_asked_once(
    waits: list[float],
) -> None:
    server = Server((503, {}, "<html>"))
    with server.running() as url:
        client = BSOClient(url)
        with pytest.raises(ZeusServiceUnavailable, match=r"is not available \(HTTP 503\)"):
            client.without_retries(30).heartbeat(trial_start())
        assert (len(server.seen), waits) == (1, [])
        with pytest.raises(ZeusServiceUnavailable, match=r"is not available \(HTTP 503\)"):
            client.register_job(job())
        assert len(server.seen) == 1 + 4


@pytest.mark.parametrize(("seconds", "waited"), [("1", 1), ("3600", 2)])
def test_retry_after_is_honoured_up_to_two_seconds(
    waits: list[float], seconds: str, waited: float
) -> None:
    server = Server((503, {"Retry-After": seconds}, ""), (200, JSON, REGISTERED))
    with server.running() as url:
        BSOClient(url).register_job(job())
    assert waits == [waited]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"Content-Type": "text/html"}, "<html>nginx"), "HTTP 404, text/html"),
        ((200, JSON, "[1]"), "HTTP 200, application/json"),
        ((404, JSON, '{"message": "other"}'), "HTTP 404, application/json"),
        ((302, {"Location": "https://login/"}, ""), "redirecting to https://login/"),
    ],
)
def test_another_server_at_the_url_is_an_error_that_says_so(
    answer: tuple[int, dict[str, str], str], message: str
) -> None:
    with Server(answer).running() as url, pytest.raises(ZeusServiceError) as error:
        BSOClient(url).register_job(job())
    assert str(error.value).startswith(f"{url} answers, but is not a batch size service")
    assert message in str(error.value)
    assert "check the URL" in str(error.value)


def test_an_answer_of_another_version_is_an_error_that_says_so() -> None:
    for body in ('{"trial": 1}', '{"profiles": [{}]}', '{"profiles": 1}', "{}"):
        with Server((200, JSON, body)).running() as url:
            client = BSOClient(url)
            with pytest.raises(
                ZeusServiceError,
                match=r"cannot read.*install the version that matches the service",
            ):
                client.start_trial("a", "key", hardware())
            with pytest.raises(
                ZeusServiceError,
                match=r"cannot read.*install the version that matches the service",
            ):
                client.power_profiles("job", "x", 1, PowerProfile.from_json)


def test_a_refused_connection_is_an_error_after_waits_of_less_than_two_seconds(
    waits: list[float],
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ZeusServiceUnavailable) as error:
        BSOClient(url).register_job(job())
    assert waits == [0.4, 0.8]
    message = f"no service answers at {url} (Connection refused)"
    assert str(error.value) == message


def test_a_service_without_tls_is_an_error_with_its_cause(service: ServiceProcess) -> None:
    url = service.url.replace("http://", "https://")
    cause = "wrong version number|record layer failure"  # depends on the version of OpenSSL
    with pytest.raises(ZeusServiceUnavailable, match=rf"{url} \(({cause})\)$"):
        BSOClient(url).register_job(job())


def test_a_connection_that_breaks_off_is_an_error_with_its_cause() -> None:
    def hang_up() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.recv(1)
            connection.close()

    # Which one it is depends on how much of the request has gone when the connection breaks off.
    cause = r" \((Broken pipe|Connection reset by peer|Remote end closed.*)\)$"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(ZeusServiceUnavailable, match=cause):
            BSOClient(f"http://127.0.0.1:{listener.getsockname()[1]}").register_job(job())


@pytest.mark.parametrize("once_s", [None, 0.5])
def test_a_server_that_trickles_its_answer_is_not_waited_for(once_s: float | None) -> None:
    gone = threading.Event()

    def trickle() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not gone.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=trickle, daemon=True).start()
        client = BSOClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.7)
        client = client if once_s is None else client.without_retries(once_s)
        with pytest.raises(ZeusServiceUnavailable, match=f"within {once_s or 0.7:g} s"):
            client.report(trial_start(), report())
        gone.set()


def test_the_token_is_sent_as_a_bearer_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("ZEUS_BSO_TOKEN", "from-environment")
    server = Server((401, JSON, '{"code": "unauthorized", "detail": "wrong token"}'))
    with server.running() as url:
        for token, sent in [(None, "from-environment"), ("given", "given")]:
            client = BSOClient(url, token)
            with pytest.raises(ZeusServiceError, match=r"\$ZEUS_BSO_TOKEN") as error:
                client.register_job(job())
            assert server.seen[-1]["headers"]["Authorization"] == f"Bearer {sent}"
            assert sent not in str(error.value) + repr(client) + str(error.value.fields)


@pytest.mark.parametrize("token", ["line\nbreak", "naïve"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ZeusConfigError) as error:
        BSOClient("http://127.0.0.1:1", token)
    assert token not in str(error.value)


@pytest.mark.parametrize(
    ("name", "host"),
    [("http_proxy", "127.0.0.1"), ("HTTP_PROXY", "localhost"), ("ALL_PROXY", "localhost")],
)
def test_a_proxy_in_the_environment_does_not_catch_loopback(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, name: str, host: str
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    BSOClient(f"http://{host}:{service.port}").register_job(job())


def test_a_proxy_in_the_environment_is_used_for_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server = Server((200, JSON, REGISTERED))
    with server.running() as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        BSOClient("http://zeus.example").register_job(job())
    assert server.seen[0]["path"] == "http://zeus.example/api/v1/jobs"


@pytest.mark.parametrize("answers", [(), ((403, {}, "denied"),), ((503, {}, "no such host"),)])
def test_an_error_names_the_proxy_that_the_request_went_through(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], answers: tuple[Any, ...]
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Server(*answers).running() as url:
        proxy = url if answers else f"http://127.0.0.1:{free_port()}"
        monkeypatch.setenv("http_proxy", proxy.replace("//", "//user:secret@"))
        with pytest.raises(ZeusServiceError, match=f"http://zeus.example.*{proxy}") as error:
            BSOClient("http://zeus.example").register_job(job())
    assert "secret" not in str(error.value)


def test_certificates_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    with pytest.raises(ZeusServiceUnavailable, match=r"no service .*/nowhere\.pem"):
        BSOClient("https://zeus.example").register_job(job())


def test_a_proxys_mistaken_address_is_not_taken_for_the_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:sec/ret@127.0.0.1:1")
    with pytest.raises(ZeusConfigError, match="or its proxy in the environment") as error:
        BSOClient("http://zeus.example").register_job(job())
    assert "sec" not in str(error.value)
