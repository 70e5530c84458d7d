"""`zeus-lightning`, on the fake driver and on a machine without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apple_silicon import as_on_a_mac
from click.testing import CliRunner, Result
from fake_nvml import FakeDriver, FakeGpu
from fake_powercap import FakePowercap
from fake_zeusd import FakeZeusd
from forked import in_forked_child
from service_process import ServiceProcess, free_port

from zeus_lightning import __version__
from zeus_lightning.cli import main
from zeus_lightning.meters import amd
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.restore import TemporaryLimit, records_folder

LIST_HEAVY_IMPORTS = """
import sys
from zeus_lightning.cli import main
try:
    main()
finally:
    print([name for name in ("torch", "lightning") if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for variable in ("ZEUS_SERVER_URL", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT", "ZEUSD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def doctor(*options: str) -> tuple[int, dict[str, list[str]]]:
    """Exit status, and for each row whether it works, and the details."""
    done = run("doctor", *options)
    rows = re.findall(
        r"^ +(\S.*?)  +(\S+(?: \d+)?)  +(yes|no|-)  +(.*?) *$", done.stdout, re.MULTILINE
    )
    shown = {f"{what} {where}": [works, details] for what, where, works, details in rows}
    return done.exit_code, shown


def test_doctor_shows_driver_gpus_counters_ranges_and_the_right_and_changes_nothing(
    fake_gpus: FakeDriver,
) -> None:
    fake_gpus.gpus[1].limit_mw = 222_000
    status, rows = doctor("--power-limit")
    assert status == 0
    assert rows["driver NVIDIA"] == ["yes", "NVIDIA 000.00.fake, 2 GPUs"]
    uuid = fake_gpus.gpus[1].uuid
    assert rows["GPU GPU 1"] == ["yes", f"Fake H100, {uuid}: has an energy counter"]
    assert rows["power limit GPU 1"] == ["yes", "100 to 300 W, now 222 W"]
    assert rows["permission GPU 1"][0] == "yes"
    assert rows["service -"] == ["-", "not set: --url or $ZEUS_SERVER_URL"]
    assert [gpu.limit_mw for gpu in fake_gpus.gpus] == [300_000, 222_000]
    assert list(records_folder().iterdir()) == []


@pytest.mark.parametrize(
    ("change", "options", "status"),
    [
        (FakeGpu.refuse_limits, ["--power-limit"], 1),
        (FakeGpu.refuse_limits, ["--power-limit", "--meter=nvml:0"], 0),
        (FakeGpu.refuse_limits, ["--meter=nvml"], 0),
        (FakeGpu.lack_power_control, ["--power-limit"], 0),
        (FakeGpu.lose, ["--meter=nvml"], 1),
        (FakeGpu.lose, ["--meter=nvml:0"], 0),
        (FakeDriver.unload, ["--meter=nvml"], 1),
        (FakeDriver.unload, ["--power-limit"], 1),
        (None, ["--meter=nvml:7"], 1),
        (None, ["--meter=gpu"], 1),
        (None, [f"--url=http://127.0.0.1:{free_port()}"], 1),
        (None, ["--url=localhost"], 1),
    ],
)
def test_doctor_exits_1_where_training_with_the_options_would_fail(
    fake_gpus: FakeDriver, change: Any, options: list[str], status: int
) -> None:
    if change is not None:
        change(fake_gpus if change is FakeDriver.unload else fake_gpus.gpus[1])
    found, rows = doctor(*options)
    assert found == status
    if change is FakeGpu.refuse_limits and status:
        assert "CAP_SYS_ADMIN" in rows["permission GPU 1"][1]
    assert ("no" in [works for works, _ in rows.values()]) == bool(status)


def test_doctor_sees_rapl_and_the_services_version(
    fake_gpus: FakeDriver,
    service: ServiceProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zeus_lightning.meters.rapl.POWERCAP", tmp_path)
    assert doctor("--meter=rapl")[0] == 1
    unchecked = "No service was checked; pass --url to check one."
    assert unchecked in run("doctor").stdout
    assert unchecked not in run("doctor", f"--url={service.url}").stdout
    FakePowercap(tmp_path).add_package(0)
    status, rows = doctor("--meter=rapl", f"--url={service.url}")
    assert status == 0
    assert rows["meter rapl"] == ["yes", "package-0"]
    assert rows[f"service {service.url}"] == ["yes", f"zeus-service {__version__}"]
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    assert f"service {service.url}" in doctor()[1]


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("may-read-and-write", 0, f"zeus-service {__version__}"),
        ("may-only-read-this", 1, "this token is read-only; use one that may write"),
        ("", 1, "set $ZEUS_BSO_TOKEN to a token"),
    ],
)
def test_doctor_tells_whether_the_token_lets_a_run_report(
    guarded: ServiceProcess,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.setenv("ZEUS_BSO_TOKEN", token)
    found, rows = doctor(f"--url={guarded.url}")
    works, details = rows[f"service {guarded.url}"]
    assert (found, works) == (status, "no" if status else "yes")
    assert words in details


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_doctor_prints_no_secret_of_an_address(scheme: str) -> None:
    found, rows = doctor(f"--url={scheme}zeus:/se@cret/@host:1")
    assert found == 1
    assert rows[f"service {scheme}host:1"][0] == "no"
    assert "cret" not in str(rows)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    tokens = {"TOKEN": "may-read-and-write", "READ_TOKEN": "may-only-read-this"}
    env = {f"ZEUS_BSO_{name}": token for name, token in tokens.items()}
    with ServiceProcess(tmp_path_factory.mktemp("guarded"), **env) as service:
        yield service


def test_doctor_names_the_meter_that_auto_takes(
    fake_gpus: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zeus_lightning.meters.rapl.POWERCAP", tmp_path)
    on_gpu = "nvml if training runs on a GPU, else "
    assert doctor()[1]["meter auto"][1].startswith(f"{on_gpu}cpu-estimate")
    FakePowercap(tmp_path).add_package(0)
    assert doctor()[1]["meter auto"] == ["yes", f"{on_gpu}rapl"]
    fake_gpus.unload()
    assert doctor()[1]["meter auto"] == ["yes", "rapl"]
    monkeypatch.setattr("zeus_lightning.meters.rapl.POWERCAP", Path("/nonexistent"))
    works, details = doctor()[1]["meter auto"]
    assert (works, "cpu-estimate: no CPU energy counter" in details) == ("yes", True), details
    as_on_a_mac(monkeypatch)
    assert doctor()[1]["meter auto"] == ["yes", "apple"]


def test_doctor_tries_limits_through_zeusd_and_says_so(
    fake_gpus: FakeDriver, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.gpus[1].refuse_limits()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", socket_path)
    status, rows = doctor("--power-limit")
    assert status == 1
    assert rows[f"zeusd {socket_path}"][0] == "no"
    assert "check that it runs" in rows["permission GPU 1"][1]
    with FakeZeusd(fake_gpus, socket_path, groups=("gpu-control", "gpu-read")):
        status, rows = doctor("--power-limit")
    assert status == 0
    assert rows[f"zeusd {socket_path}"] == ["yes", "allows gpu-control, gpu-read"]
    assert rows["permission GPU 1"] == [
        "yes",
        "can set limits through zeusd (tested with the current one)",
    ]
    assert [gpu.limit_mw for gpu in fake_gpus.gpus] == [300_000, 300_000]


def test_doctor_shows_amds_gpus_and_why_apple_silicon_cannot_be_read(amd_gpus: FakeDriver) -> None:
    status, rows = doctor("--power-limit", "--meter=amd:1")
    assert status == 0
    assert rows["driver AMD"] == ["yes", "AMD SMI, 2 GPUs"]
    assert rows["GPU AMD 1"][1].endswith(": has an energy counter")
    assert rows["power limit AMD 1"] == ["yes", "100 to 300 W, now 300 W"]
    assert rows["permission AMD 1"][0] == "yes"
    amd_gpus.gpus[1].refuse_limits()
    assert doctor("--power-limit", "--meter=amd:0")[0] == 0
    assert doctor("--power-limit", "--meter=amd:1")[0] == 1
    amd_gpus.gpus[1].lose()
    status, rows = doctor("--meter=amd:0")
    assert (status, rows["GPU AMD 1"][0]) == (0, "-")
    status, rows = doctor("--meter=apple")
    assert status == 1
    assert "Apple silicon Mac" in rows["meter apple"][1]


def test_doctor_says_what_amds_gpus_need(
    fake_gpus: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # as if it were not installed
    amd.load.cache_clear()
    status, rows = doctor("--meter=amd")
    assert status == 1
    assert "install the amdsmi that matches ROCm" in rows["meter amd"][1]
    assert doctor("--meter=cpu-estimate")[0] == 0


def test_doctor_checks_combined_meters_and_the_address_of_zeusd(
    fake_gpus: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zeus_lightning.meters.rapl.POWERCAP", tmp_path)
    assert doctor()[1]["zeusd -"][0] == "-"
    assert doctor("--meter=nvml:0+rapl")[0] == 1
    FakePowercap(tmp_path).add_package(0)
    status, rows = doctor("--meter=nvml:0+rapl")
    assert status == 0
    assert rows["meter nvml:0+rapl"][0] == "yes"
    monkeypatch.setenv("ZEUSD_HOST_PORT", "nonsense")
    assert "is not a zeusd address" in doctor()[1]["zeusd -"][1]


def set_limit_and_die() -> None:
    TemporaryLimit(GpuLimit(0)).set_w(125)
    os._exit(0)


def test_reset_power_limits_restores_what_a_killed_run_left(fake_gpus: FakeDriver) -> None:
    gpu = fake_gpus.gpus[0]
    done = run("reset-power-limits")
    assert done.exit_code == 0
    assert "Nothing is left" in done.stdout
    gpu.limit_mw = 250_000
    with pytest.raises(EOFError):  # the child does not report an end
        in_forked_child(set_limit_and_die)
    assert gpu.limit_mw == 125_000
    gpu.refuse_limits()
    done = run("reset-power-limits")
    assert done.exit_code == 1
    assert "CAP_SYS_ADMIN" in done.stdout
    gpu.fail("set_limit", 0)
    done = run("reset-power-limits")
    assert done.exit_code == 0
    assert "was restored to 250 W, its value before process" in done.stdout
    assert gpu.limit_mw == 250_000


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_the_commands_and_their_options(option: str) -> None:
    shown = run(option).stdout
    for command in ("doctor", "exec", "recur", "reset-power-limits"):
        assert command in shown
        assert run(command, option).exit_code == 0
    assert "ZEUS_SERVER_URL" in run("doctor", option).stdout


@pytest.mark.parametrize("arguments", [["doctor"], ["exec", "--", "echo", "mine"]])
def test_no_command_waits_for_torch_or_lightning(
    fake_gpus: FakeDriver, arguments: list[str]
) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LIST_HEAVY_IMPORTS, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout
    assert done.stderr == "[]\n"
