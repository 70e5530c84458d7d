"""Several workers and their threads: the work is shared, and nobody is held up."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from service.jobs import spec_json
from service_process import ServiceProcess
from zeus_service.turns import AT_ONCE

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def shares(service: ServiceProcess, clients: int) -> list[int]:
    """How many clients each of the workers has, of those that come all at once."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", service.port)
        opened = [
            stack.enter_context(socket.create_connection(address, timeout=60))
            for _ in range(clients)
        ]
        for client in opened:
            client.sendall(REQUEST)
        for client in opened:
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        return [connections(worker, service.port) for worker in service.workers()]


def connections(pid: int, port: int) -> int:
    found = psutil.Process(pid).net_connections(kind="tcp")
    return sum(each.status == "ESTABLISHED" and each.laddr.port == port for each in found)


def test_connections_that_arrive_at_once_are_shared(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, workers=2) as service:
        deadline = time.monotonic() + 60
        while sum(share > 0 for share in shares(service, 16)) < 2:  # one is still starting
            assert time.monotonic() < deadline
        smaller = [min(shares(service, 16)) for _ in range(12)]
        assert statistics.mean(smaller) > 5


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A worker that never lets more requests in."""
    paths = os.pathsep.join(sys.path)
    with ServiceProcess(
        tmp_path, gunicorn=True, application="service.patient:app", PYTHONPATH=paths
    ) as service:
        yield service


def test_few_requests_are_answered_at_a_time(patient: ServiceProcess) -> None:
    with ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> int:
            return int(requests.post(f"{patient.url}/under-way", timeout=30).json())

        assert max(pool.map(ask, range(64))) == AT_ONCE


def test_bodies_that_are_waited_for_hold_up_no_others(patient: ServiceProcess) -> None:
    head = b"POST /under-way HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    address = ("127.0.0.1", patient.port)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(address, timeout=60))
            for _ in range(AT_ONCE)
        ]
        for client in slow:
            client.sendall(head + b"12")
        for _ in range(3):
            assert requests.post(f"{patient.url}/under-way", data="123", timeout=8).json() == 1
        for client in slow:
            client.sendall(b"3")
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_requests_that_wait_for_the_database_hold_up_no_others(
    own_service: ServiceProcess,
) -> None:
    path = own_service.database_url.removeprefix("sqlite:///")
    with (
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as lock,
        ThreadPoolExecutor(4) as pool,
    ):
        lock.execute("BEGIN IMMEDIATE")
        jobs = f"{own_service.url}/api/v1/jobs"
        blocked = [
            pool.submit(requests.post, jobs, json=spec_json(job_id=f"job-{n}"), timeout=60)
            for n in range(4)
        ]
        try:
            for _ in range(3):
                assert requests.get(jobs, timeout=20).json() == {"jobs": []}
            assert not any(future.done() for future in blocked)
        finally:
            lock.rollback()
        assert [future.result().status_code for future in blocked] == [201] * 4
