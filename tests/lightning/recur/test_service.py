"""The service that the driver starts itself."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from waiting import wait_until

from zeus_lightning import ZeusError, ZeusServiceError
from zeus_lightning.client import BSOClient
from zeus_lightning.recur.service import OwnService, Service


def test_it_is_started_again_if_it_dies_and_ends_with_the_driver(tmp_path: Path) -> None:
    with OwnService(f"sqlite:///{tmp_path / 'db'}", tmp_path / "log") as service:
        process = service._process
        assert isinstance(process, subprocess.Popen)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
        for each in family:
            each.kill()
        psutil.wait_procs(family)
        wait_until(service.answers)
        again = service._process
        assert again is not None
        assert again.pid != process.pid
        BSOClient(service.url).check_access()
    assert again.poll() is not None


def test_it_ends_without_waiting_for_connections_that_are_open(tmp_path: Path) -> None:
    with OwnService(f"sqlite:///{tmp_path / 'db'}", tmp_path / "log") as service:
        parts = urlsplit(service.url)
        client = socket.create_connection((parts.hostname, parts.port))
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        began_s = time.monotonic()
    ended_s = time.monotonic()
    with client:
        assert client.recv(1) == b""
    assert ended_s - began_s < 10  # waiting would take 30 s


def test_a_token_in_the_folders_env_file_that_the_runs_lack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("ZEUS_BSO_TOKEN=the-token-of-another-service\n")
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ZeusServiceError, match=r"401(?s:.*)export the ZEUS_BSO_TOKEN"),
        OwnService(f"sqlite:///{tmp_path / 'db'}", tmp_path / "log"),
    ):
        pass


def test_one_that_refuses_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: BSOClient) -> str:
        raise ZeusServiceError("status 429")

    monkeypatch.setattr(BSOClient, "server_version", refuse)
    assert not Service("http://127.0.0.1:9").answers()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeusError, match=r"(?s)did not start.*cannot open the database"),
        OwnService(f"sqlite:///{tmp_path}", tmp_path / "log"),
    ):
        pass
