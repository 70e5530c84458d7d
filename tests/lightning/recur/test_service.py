"""The service that the driver starts itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from full_disk import full_disk
from waiting import wait_until

from zeus_lightning import ZeusError, ZeusServiceError, ZeusServiceUnavailable
from zeus_lightning.client import BSOClient
from zeus_lightning.recur.service import OwnService, Service

LEAVES_ONE = """
import os, signal, sys
from pathlib import Path
from zeus_lightning.recur.service import OwnService
OwnService(sys.argv[1], Path(sys.argv[2])).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill(process: psutil.Process | None) -> int:
    """Kill a service and its worker; its process id."""
    assert process is not None
    family = [process, *process.children()]
    for each in family:
        each.kill()
    psutil.wait_procs(family)
    return int(process.pid)


def own(folder: Path, database: str = "db") -> OwnService:
    return OwnService(f"sqlite:///{folder / database}", folder / "log")


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Service]:
    """The service of a driver that was killed."""
    database, log = f"sqlite:///{tmp_path / 'db'}", str(tmp_path / "log")
    killed = subprocess.run([sys.executable, "-c", LEAVES_ONE, database, log], check=False)
    assert killed.returncode == -signal.SIGKILL
    record = json.loads((tmp_path / "log.json").read_text())
    yield Service(record["url"])
    with suppress(psutil.NoSuchProcess):
        kill(psutil.Process(record["service"][0]))


def test_one_that_a_driver_has_left_is_taken_over_with_its_workers(
    left: Service, tmp_path: Path
) -> None:
    with own(tmp_path) as service:
        assert service.url == left.url
        kill(service._process)
        wait_until(service.answers)  # it is started again
        assert service.url == left.url
    with own(tmp_path) as service:
        assert service.url != left.url  # none was left


def test_one_that_a_driver_has_left_for_another_database_stays(
    left: Service, tmp_path: Path
) -> None:
    with own(tmp_path, "other") as service:
        assert service.url != left.url
    assert left.answers()


def test_one_that_was_taken_over_stays_if_it_refuses(
    left: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: BSOClient) -> None:
        raise ZeusServiceError("401", {"status": 401})

    monkeypatch.setattr(BSOClient, "check_access", refuse)
    with pytest.raises(ZeusServiceError):
        own(tmp_path).__enter__()
    assert left.answers()


def test_one_is_taken_over_from_another_folder_unless_its_path_is_relative(
    left: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = OwnService("sqlite:///relative", tmp_path / "log")._database
    monkeypatch.chdir(tmp_path)
    assert OwnService("sqlite:///relative", tmp_path / "log")._database != here
    with own(tmp_path) as service:
        assert service.url == left.url


def test_one_of_a_process_that_lives_is_not_taken_over(tmp_path: Path) -> None:
    with own(tmp_path) as first:
        with own(tmp_path) as second:
            assert second.url != first.url
        assert first.answers()


@pytest.mark.parametrize("record", ["", "[]", "{}"])
def test_a_torn_record_of_one_that_a_driver_has_left_is_none(tmp_path: Path, record: str) -> None:
    (tmp_path / "log.json").write_text(record)
    with own(tmp_path) as service:
        assert service.answers()
    assert not (tmp_path / "log.json").exists()


def test_it_is_started_again_if_it_dies_and_ends_with_the_driver(tmp_path: Path) -> None:
    with own(tmp_path) as service:
        killed = kill(service._process)
        wait_until(service.answers)
        again = service._process
        assert again is not None
        assert again.pid != killed
        BSOClient(service.url).check_access()
    assert again.poll() is not None


def test_one_that_was_just_started_again_ends_before_it_handles_signals(tmp_path: Path) -> None:
    with own(tmp_path) as service:
        kill(service._process)
        assert not service.answers()
        again = service._process
    assert again is not None
    assert again.returncode in (0, -signal.SIGTERM)  # SIGQUIT would leave a core dump


def test_it_ends_without_waiting_for_connections_that_are_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with own(tmp_path) as service:
        client = HTTPConnection(service.url.removeprefix("http://"))
        client.request("GET", "/healthz")
        assert client.getresponse().read()
        assert client.sock is not None  # it is kept alive
    with closing(client):
        assert "Handling signal: quit" in log.read_text()  # `term` would wait


@pytest.mark.parametrize("name", ["ZEUS_BSO_TOKEN", "ZEUS_BSO_TOKEN_FILE"])
def test_a_token_that_the_service_has_read_and_the_runs_lack_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "token").write_text("the-token-of-another-service\n")
    value = "token" if name.endswith("_FILE") else "the-token-of-another-service"
    (tmp_path / ".env").write_text(f"{name}={value}\n")
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ZeusServiceError, match=r"401(?s:.*)export it as ZEUS_BSO_TOKEN") as raised,
        own(tmp_path),
    ):
        pass
    assert raised.value.fields["status"] == 401
    assert "Handling signal: quit" in (tmp_path / "log").read_text()


def test_another_error_of_the_service_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ZeusServiceUnavailable("503", {"status": 503})

    def refuse(_: BSOClient) -> None:
        raise error

    monkeypatch.setattr(BSOClient, "check_access", refuse)
    monkeypatch.setattr(OwnService, "_start", lambda _: None)
    monkeypatch.setattr(BSOClient, "server_version", lambda _: "1")
    with pytest.raises(ZeusServiceError) as raised:
        own(tmp_path).__enter__()
    assert raised.value is error


def test_one_that_refuses_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: BSOClient) -> str:
        raise ZeusServiceError("status 429")

    monkeypatch.setattr(BSOClient, "server_version", refuse)
    assert not Service("http://127.0.0.1:9").answers()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ZeusError,
            match=rf"(?s)did not start, and {tmp_path}/log ends:\n.*cannot open the database",
        ),
        OwnService(f"sqlite:///{tmp_path}", tmp_path / "log"),
    ):
        pass


def test_one_that_cannot_start_on_a_full_disk_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    message = f"did not start, and wrote nothing to {log}; its disk may be full"
    log.write_text("of an older start\n")
    with (
        full_disk(),
        pytest.raises(ZeusError, match=message),
        own(tmp_path),
    ):
        pass
