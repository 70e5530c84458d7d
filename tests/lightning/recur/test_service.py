"""The service that the driver starts itself."""

from __future__ import annotations

from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import psutil
import pytest
from service_process import free_port
from waiting import LIMIT_S

from zeus_lightning import ZeusError, ZeusServiceError
from zeus_lightning.client import BSOClient
from zeus_lightning.recur import service as service_module
from zeus_lightning.recur.service import OwnService


def own(folder: Path, port: int = 0) -> OwnService:
    return OwnService(f"sqlite:///{folder / 'db'}", folder / "log", port)


def processes(pid: int) -> list[psutil.Process]:
    """The process between the driver and the service, the service, and its worker."""
    between = psutil.Process(pid)
    return [between, *between.children(recursive=True)]


def test_its_death_is_an_error_and_its_end_waits_for_no_open_connection(tmp_path: Path) -> None:
    port = free_port()
    with own(tmp_path, port) as service:
        assert service.url == f"http://127.0.0.1:{port}"
        BSOClient(service.url).check_access()
        client = HTTPConnection(service.url.removeprefix("http://"))
        client.request("GET", "/healthz")
        assert client.getresponse().read()
        assert client.sock is not None  # it is kept alive
        running = processes(service._process.pid)
    with closing(client):
        assert [each for each in running if each.is_running()] == []
        assert "Handling signal: int" in (tmp_path / "log").read_text()  # `term` would wait
    with pytest.raises(
        ZeusError, match=rf"(?s)the service exited; the last lines of {tmp_path}/log:\n"
    ):
        service.check()


def test_one_that_hangs_at_its_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_END_S", 0.1)
    service = own(tmp_path).__enter__()
    _, *hanging = processes(service._process.pid)
    assert len(hanging) == 2
    for each in hanging:
        each.suspend()
    leaving = Thread(target=service.__exit__, daemon=True)  # without SIGKILL it blocks for ever
    leaving.start()
    try:
        leaving.join(LIMIT_S)
        assert not leaving.is_alive()
        _, left = psutil.wait_procs(hanging, timeout=LIMIT_S)
        assert left == []
    finally:
        for each in hanging:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def test_a_token_that_the_service_has_read_and_the_runs_lack_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the-token-of-another-service\n")
    (tmp_path / ".env").write_text("ZEUS_BSO_TOKEN_FILE=token\n")
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(
            ZeusServiceError, match=r"401.*a valid token.*set \$ZEUS_BSO_TOKEN"
        ) as raised,
        own(tmp_path) as service,
    ):
        BSOClient(service.url).check_access()
    assert raised.value.fields["status"] == 401
    assert "Handling signal: int" in (tmp_path / "log").read_text()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ZeusError,
            match=rf"(?s)exited; the last lines of {tmp_path}/log:\n.*cannot open the database",
        ),
        OwnService(f"sqlite:///{tmp_path}", tmp_path / "log"),
    ):
        pass
