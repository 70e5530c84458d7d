"""Clients that do not finish what they began to send, and some that only look so."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from service.jobs import spec_json
from service_process import ServiceProcess

KEEPALIVE_S = 10
"""How long the service waits for a request's head."""
HEAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STOPS = {
    "in the request line": b"POST /api/v1",
    "in the headers": HEAD,
    "in the body": HEAD + b'Content-Length: 100\r\n\r\n{"job_id": ',
    "in a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n64\r\n{"job_id": ',
}


@contextlib.contextmanager
def files(soft: int) -> Iterator[None]:
    """Let this process, and those that it starts, open so many files, as `ulimit -Sn` does."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Started under the limit of open files that most Linux systems have."""
    folder = tmp_path_factory.mktemp("service")
    with files(1024), ServiceProcess(folder, workers=2) as service:
        yield service


@contextlib.contextmanager
def clients(service: ServiceProcess, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections on which so much was sent."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", service.port), timeout=90)
            opened.append(stack.enter_context(client))
            client.sendall(sent)
        yield opened


def check_that_it_answers(service: ServiceProcess) -> None:
    """Check that new connections are served, before any idle one times out."""
    for _ in range(5):
        began = time.monotonic()
        assert requests.get(f"{service.url}/healthz", timeout=90).ok
        answer = requests.post(f"{service.url}/api/v1/jobs", json=spec_json(), timeout=90)
        assert answer.status_code in (200, 201)
        assert time.monotonic() - began < KEEPALIVE_S


@pytest.mark.parametrize("sent", STOPS.values(), ids=STOPS.keys())
def test_half_sent_requests_do_not_keep_others_out(
    two_workers: ServiceProcess, sent: bytes
) -> None:
    with clients(two_workers, 200, sent):
        check_that_it_answers(two_workers)
    assert "Traceback" not in two_workers.log.read_text()


@pytest.mark.parametrize(
    "head",
    [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", HEAD],
    ids=["body not read", "body read"],
)
def test_bodies_that_trickle_do_not_keep_others_out(
    two_workers: ServiceProcess, head: bytes
) -> None:
    over = threading.Event()

    def trickle(opened: list[socket.socket]) -> None:
        while not over.wait(1):
            for client in opened:
                with contextlib.suppress(OSError):
                    client.sendall(b"x")

    with clients(two_workers, 200, head + b"Content-Length: 1000\r\n\r\n") as opened:
        thread = threading.Thread(target=trickle, args=(opened,))
        thread.start()
        try:
            check_that_it_answers(two_workers)
        finally:
            over.set()
            thread.join()


def test_idle_connections_do_not_keep_others_out(two_workers: ServiceProcess) -> None:
    with files(4000), clients(two_workers, 2500, b""):
        check_that_it_answers(two_workers)


def test_a_head_that_never_ends_is_given_up(two_workers: ServiceProcess) -> None:
    with (
        clients(two_workers, 1, b"") as before,
        clients(two_workers, 1, STOPS["in the request line"]) as in_line,
        clients(two_workers, 1, STOPS["in the headers"]) as in_headers,
    ):
        for (client,) in (before, in_line, in_headers):
            assert client.recv(1000) == b""
