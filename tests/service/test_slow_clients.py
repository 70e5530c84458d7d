"""Clients that do not finish what they began to send, and some that only look so."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sqlite3
import threading
from pathlib import Path

import pytest
import requests
from service.jobs import spec_json
from service_process import ServiceProcess
from zeus_service.server import REQUEST_TIMEOUT_S

HEAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
JSON = {"Content-Type": "application/json"}
STOPS = {
    "in the request line": b"POST /api/v1",
    "in the headers": HEAD,
    "in the body": HEAD + b'Content-Length: 100\r\n\r\n{"job_id": ',
    "in a chunk": HEAD + b'Transfer-Encoding: chunked\r\n\r\n64\r\n{"job_id": ',
}


def test_half_sent_requests_do_not_keep_others_out(tmp_path: Path) -> None:
    (tmp_path / "gunicorn").mkdir()
    with (
        ServiceProcess(tmp_path, workers=2) as served,
        ServiceProcess(tmp_path / "gunicorn", workers=2, gunicorn=True) as under_gunicorn,
        contextlib.ExitStack() as stack,
    ):
        services = (served, under_gunicorn)
        clients = []
        for service in services:
            for sent in STOPS.values():
                for _ in range(8):  # 32 for 16 threads
                    client = socket.create_connection(("127.0.0.1", service.port), timeout=90)
                    clients.append(stack.enter_context(client))
                    client.sendall(sent)
        for service in services:
            answer = requests.post(f"{service.url}/api/v1/jobs", json=spec_json(), timeout=90)
            assert answer.status_code == 201
        for client in clients:
            received = client.recv(1000)
            assert received == b"" or received.startswith(b"HTTP/1.1 400 ")
        for service in services:
            assert "Traceback" not in service.log.read_text()


def test_bodies_that_trickle_read_or_not_do_not_keep_others_out(
    own_service: ServiceProcess,
) -> None:
    heads = (
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        HEAD + b"Content-Length: 1000\r\n\r\n",
    )
    over = threading.Event()

    def trickle(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not over.wait(1):
                client.sendall(b"x")

    with contextlib.ExitStack() as stack:
        for number in range(8):  # the threads of its worker
            client = socket.create_connection(("127.0.0.1", own_service.port), timeout=90)
            stack.enter_context(client).sendall(heads[number % 2])
            threading.Thread(target=trickle, args=(client,), daemon=True).start()
        stack.callback(over.set)
        started = requests.post(f"{own_service.url}/api/v1/jobs", json=spec_json(), timeout=60)
        assert started.status_code == 201


def test_a_client_that_pauses_for_a_moment_is_served(own_service: ServiceProcess) -> None:
    address = ("127.0.0.1", own_service.port)
    with socket.create_connection(address, timeout=60) as client, client.makefile("rb") as answers:
        for _ in range(2):  # also on a connection that is kept
            for part in (b"GET /healthz HTTP/1.1\r\n", b"Host: ", b"x\r\n", b"\r\n"):
                client.sendall(part)
                with contextlib.suppress(TimeoutError):
                    client.settimeout(1)
                    client.recv(1, socket.MSG_PEEK)
                client.settimeout(60)
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            while answers.readline() != b"\r\n":
                pass
            answers.readline()
            answers.read(0)


def test_a_slow_answer_leaves_the_connection_open(own_service: ServiceProcess) -> None:
    lock = sqlite3.connect(
        own_service.database_url.removeprefix("sqlite:///"),
        isolation_level=None,
        check_same_thread=False,
    )
    connection = http.client.HTTPConnection("127.0.0.1", own_service.port, timeout=90)
    with contextlib.closing(lock), contextlib.closing(connection):
        connection.connect()
        kept = connection.sock
        lock.execute("BEGIN IMMEDIATE")
        unlock = threading.Timer(REQUEST_TIMEOUT_S + 2.5, lock.rollback)
        unlock.start()
        for status in (201, 200):
            connection.request("POST", "/api/v1/jobs", json.dumps(spec_json()), JSON)
            answer = connection.getresponse()
            assert answer.status == status
            answer.read()
            kept.settimeout(1)
            with pytest.raises(TimeoutError):
                kept.recv(1, socket.MSG_PEEK)
            kept.settimeout(90)
        assert not unlock.is_alive()
        assert connection.sock is kept
