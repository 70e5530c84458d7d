"""The client of Zeus's daemon, over a Unix socket and over TCP with a token."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from fake_nvml import FakeDriver
from fake_zeusd import FakeZeusd
from forked import in_forked_child
from service_process import free_port
from zeus.utils.zeusd import ZeusdClient, ZeusdConfig

from zeus_lightning import ZeusConfigError, ZeusPowerError
from zeus_lightning.zeusd import Zeusd, find_zeusd


@pytest.fixture(params=["unix", "tcp"])
def daemon(
    request: pytest.FixtureRequest,
    fake_gpus: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    socket_path: str,
) -> Iterator[FakeZeusd]:
    """A daemon on a socket, or on TCP with a token, which the environment has."""
    fake_gpus.freeze()
    unix = request.param == "unix"
    address = socket_path if unix else f"127.0.0.1:{free_port()}"
    key = None if unix else "a-key"
    with FakeZeusd(fake_gpus, address, key=key) as daemon:
        if not unix:
            monkeypatch.setenv("ZEUSD_TOKEN", daemon.token("gpu-control", "gpu-read"))
        yield daemon


def test_zeuss_own_client_speaks_with_the_tests_daemon(
    fake_gpus: FakeDriver, daemon: FakeZeusd
) -> None:
    unix = "/" in daemon.address
    config = (
        ZeusdConfig.uds(daemon.address, token=None)
        if unix
        else ZeusdConfig(host_port=daemon.address, token=os.environ["ZEUSD_TOKEN"])
    )
    client = ZeusdClient(config)
    assert client.gpu_ids == [0, 1]
    assert client.auth_required == (not unix)
    assert client.can_read_gpu
    assert client.can_control_gpu
    client.set_power_limit([1], 150_000)
    assert client.get_power_limit() == {0: 300_000, 1: 150_000}
    assert client.get_gpu_energy([0]) == {0: int(fake_gpus.gpus[0].energy_mj())}


def test_this_client_does_the_same(fake_gpus: FakeDriver, daemon: FakeZeusd) -> None:
    zeusd = Zeusd(daemon.address)
    assert zeusd.api_groups() == ["gpu-control", "gpu-read"]
    assert zeusd.gpu_ids() == [0, 1]
    zeusd.set_power_limit(1, 150_000)
    assert [gpu.limit_mw for gpu in fake_gpus.gpus] == [300_000, 150_000]
    assert zeusd.gpu_energy_mj(0) == int(fake_gpus.gpus[0].energy_mj())


def test_what_the_daemon_refuses_is_an_error_in_its_words(
    fake_gpus: FakeDriver, daemon: FakeZeusd
) -> None:
    zeusd = Zeusd(daemon.address)
    with pytest.raises(
        ZeusPowerError, match=r"failed with status 400: NVML error: Invalid Argument"
    ) as raised:
        zeusd.set_power_limit(0, 301_000)
    assert raised.value.fields == {"cause": "zeusd"}
    with pytest.raises(ZeusPowerError, match="failed with status 400: GPU index 7 does not exist"):
        zeusd.set_power_limit(7, 200_000)
    fake_gpus.gpus[0].lose()
    with pytest.raises(ZeusPowerError, match="failed with status 500: NVML error: GPU is lost"):
        zeusd.gpu_energy_mj(0)


def test_tokens_and_groups_that_do_not_allow_it_are_refused_with_a_remedy(
    fake_gpus: FakeDriver,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with FakeZeusd(fake_gpus, address, key="a-key") as daemon:
        refused = {
            "Authentication required": None,
            "Invalid token": daemon.token("gpu-control") + "x",
            "Token has expired": daemon.token("gpu-control", expires_s=time.time() - 3600),
            "lacks required scope 'gpu-control'": daemon.token("gpu-read"),
        }
        for reason, token in refused.items():
            with pytest.raises(ZeusPowerError, match=f"{reason}.*ZEUSD_TOKEN") as raised:
                Zeusd(address, token).set_power_limit(0, 200_000)
            assert raised.value.fields == {"cause": "no_permission"}
        assert fake_gpus.gpus[0].limit_mw == 300_000
    with (
        FakeZeusd(fake_gpus, address, groups=("gpu-control",)),
        pytest.raises(ZeusPowerError, match=r"'gpu-read' is not enabled.*start it with `--enable"),
    ):
        Zeusd(address).gpu_energy_mj(0)


def test_a_daemon_that_does_not_run_and_one_that_never_answers_are_errors(
    socket_path: str,
) -> None:
    with pytest.raises(
        ZeusPowerError, match=r"zeusd at .*sock cannot be reached.*it runs"
    ) as raised:
        Zeusd(socket_path).gpu_ids()
    assert raised.value.fields == {"cause": "zeusd"}
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(socket_path)
        silent.listen()
        start_s = time.monotonic()
        with pytest.raises(ZeusPowerError, match="timed out"):
            Zeusd(socket_path).gpu_ids()
        assert time.monotonic() - start_s >= 2


def test_a_socket_that_this_user_may_not_write_is_named_with_the_daemons_option(
    socket_path: str,
) -> None:
    def as_another_user() -> None:
        os.setuid(65534)
        with pytest.raises(ZeusPowerError, match="--socket-gid") as raised:
            Zeusd(socket_path).gpu_ids()
        assert raised.value.fields == {"cause": "no_permission"}

    Path(socket_path).parent.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(socket_path)
        listening.listen()
        Path(socket_path).chmod(0o600)
        if os.getuid() == 0:
            in_forked_child(as_another_user)
        else:
            Path(socket_path).chmod(0)
            with pytest.raises(ZeusPowerError, match="--socket-gid"):
                Zeusd(socket_path).gpu_ids()


@pytest.mark.parametrize(
    "discovered", ["[]", "{}", '{"gpus": 1}', "<html>", '{"gpu_ids": [0], "cpu_ids": []}']
)
def test_an_older_daemon_or_another_server_is_an_error(socket_path: str, discovered: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(socket_path)
        server.listen()
        answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(discovered)}\r\n\r\n{discovered}"

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(answer.encode())

        thread = Thread(target=serve)
        thread.start()
        with pytest.raises(ZeusPowerError, match=r"use zeusd from Zeus|did not answer with JSON"):
            Zeusd(socket_path).gpu_ids()
        thread.join()


def test_the_address_is_the_argument_or_the_socket_or_the_host_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert find_zeusd() is None
    monkeypatch.setenv("ZEUSD_HOST_PORT", "node1:4938")
    assert str(find_zeusd()) == "zeusd at node1:4938"
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "/run/zeusd/zeusd.sock")
    assert str(find_zeusd()) == "zeusd at /run/zeusd/zeusd.sock"
    assert str(find_zeusd("[::1]:4938")) == "zeusd at [::1]:4938"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "zeusd.sock")
    assert str(find_zeusd()) == f"zeusd at {tmp_path}/zeusd.sock"


@pytest.mark.parametrize("address", ["zeusd", "host:", ":4938", "host:port", ""])
def test_what_is_no_address_is_a_configuration_error(address: str) -> None:
    with pytest.raises(ZeusConfigError, match="its Unix socket"):
        Zeusd(address)
