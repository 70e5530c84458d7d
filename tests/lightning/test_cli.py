"""`zeus-lightning`, on the fake driver and on a machine without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeDriver
from fake_powercap import FakePowercap
from forked import in_forked_child
from service_process import ServiceProcess, free_port

from zeus_lightning import __version__
from zeus_lightning.cli import main
from zeus_lightning.power.limits import PowerLimit
from zeus_lightning.power.loan import Loan, records_folder
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.selectors import PowerPoint


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("ZEUS_SERVER_URL", raising=False)


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, list[str]]]:
    """Exit status, and of each row that was looked at: whether it works, and the details."""
    status = main(["doctor", *options])
    rows = re.findall(
        r"^ +(\S.*?)  +(\S+(?: \d+)?)  +(yes|no|-)  +(.*?) *$", capsys.readouterr().out, re.M
    )
    return status, {f"{what} {where}": [works, details] for what, where, works, details in rows}


def test_doctor_shows_driver_gpus_counters_ranges_and_the_right_and_changes_nothing(
    fake_gpus: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpus.gpus[1].limit_mw = 222_000
    status, rows = doctor(capsys, "--power-limit")
    assert status == 0
    assert rows["driver host"] == ["yes", "NVIDIA 000.00.fake, 2 GPUs"]
    assert rows["GPU GPU 1"] == ["yes", f"Fake H100, {fake_gpus.gpus[1].uuid}"]
    assert rows["energy GPU 1"] == ["yes", "counted by the GPU"]
    assert rows["power limit GPU 1"] == ["yes", "100 to 300 W, now 222 W"]
    assert rows["permission GPU 1"][0] == "yes"
    assert rows["service -"] == ["-", "none given: --url, or $ZEUS_SERVER_URL"]
    assert [gpu.limit_mw for gpu in fake_gpus.gpus] == [300_000, 222_000]
    assert list(records_folder().iterdir()) == []


def refuse(driver: FakeDriver) -> None:
    driver.gpus[1].fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)


def lose(driver: FakeDriver) -> None:
    driver.gpus[1].lose()


def mig(driver: FakeDriver) -> None:
    driver.gpus[1].lack_power_control()


@pytest.mark.parametrize(
    ("strike", "options", "status"),
    [
        (refuse, ["--power-limit"], 1),
        (refuse, ["--power-limit", "--meter=nvml:0"], 0),
        (refuse, ["--power-limit", "--meter=nvml:1"], 1),
        (refuse, ["--meter=nvml"], 0),
        (refuse, [], 0),
        (mig, ["--power-limit"], 0),
        (lose, ["--meter=nvml"], 1),
        (lose, ["--meter=nvml:0"], 0),
        (lose, [], 0),
        (FakeDriver.unload, ["--meter=nvml"], 1),
        (FakeDriver.unload, ["--power-limit"], 1),
        (FakeDriver.unload, ["--meter=cpu-estimate"], 0),
        (FakeDriver.unload, [], 0),
        (None, ["--meter=nvml:7"], 1),
        (None, ["--meter=gpu"], 1),
        (None, [f"--url=http://127.0.0.1:{free_port()}"], 1),
        (None, ["--url=localhost"], 1),
    ],
)
def test_doctor_exits_1_where_training_with_the_options_would_fail(
    fake_gpus: FakeDriver,
    capsys: pytest.CaptureFixture[str],
    strike: Any,
    options: list[str],
    status: int,
) -> None:
    if strike is not None:
        strike(fake_gpus)
    found, rows = doctor(capsys, *options)
    assert found == status
    assert ("no" in [works for works, _ in rows.values()]) == bool(status)


def test_doctor_says_what_the_right_to_set_limits_needs(
    fake_gpus: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(fake_gpus)
    _, rows = doctor(capsys, "--power-limit")
    assert "--cap-add SYS_ADMIN" in rows["permission GPU 1"][1]


def test_doctor_sees_rapl_and_the_services_version(
    fake_gpus: FakeDriver,
    service: ServiceProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zeus_lightning.meters.rapl.POWERCAP", tmp_path)
    assert doctor(capsys, "--meter=rapl")[0] == 1
    FakePowercap(tmp_path).add_package(0)
    status, rows = doctor(capsys, "--meter=rapl", f"--url={service.url}")
    assert status == 0
    assert rows["RAPL host"] == ["yes", "package-0"]
    assert rows[f"service {service.url}"] == ["yes", f"zeus-service {__version__}"]
    monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
    assert f"service {service.url}" in doctor(capsys)[1]


def borrow_and_die() -> None:
    Loan(PowerLimit(0)).set_w(125)
    os._exit(0)


def test_reset_power_limits_puts_back_what_a_killed_run_left_behind(
    fake_gpus: FakeDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = fake_gpus.gpus[0]
    assert main(["reset-power-limits"]) == 0
    assert "Nothing is left" in capsys.readouterr().out
    gpu.limit_mw = 250_000
    with pytest.raises(EOFError):  # it does not answer
        in_forked_child(borrow_and_die)
    assert gpu.limit_mw == 125_000
    refuse_now = pynvml.NVML_ERROR_NO_PERMISSION
    gpu.fail("set_limit", refuse_now)
    assert main(["reset-power-limits"]) == 1
    assert "CAP_SYS_ADMIN" in capsys.readouterr().out
    gpu.fail("set_limit", 0)
    assert main(["reset-power-limits"]) == 0
    assert "is put back to 250 W, as process" in capsys.readouterr().out
    assert gpu.limit_mw == 250_000


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    points = (PowerPoint(300, 30.0, 0.1), PowerPoint(200, 23.7, 0.12), PowerPoint(100, 17.0, 0.17))
    text = PowerProfile(
        device_model="Fake H100",
        driver="1",
        num_devices=1,
        batch_size=64,
        points=points,
        chosen_w=200,
        selector="my-own",
        eta_knob=0.5,
        max_power_w=300.0,
        search="sweep",
        measured_at="2026-05-04T12:00:00+00:00",
    ).dumps()
    path.write_text(text)
    return path


def test_a_power_profile_is_shown_and_drawn_as_a_page_that_works_offline(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = profile.with_name("out.html")
    assert main(["power-profile", str(profile), "--plot", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "1 x Fake H100 (driver 1), batch size 64" in shown
    assert "* chosen by my-own: 200 W: energy -21.0 % and time +20.0 % against 300 W" in shown
    html = page.read_text()
    assert len(html) > 1_000_000  # plotly's JavaScript is in it
    assert not re.search(r"<(script|link)[^>]*(src|href)=", html)
    for name in ("energy (J per batch)", "time (s per batch)", "cost (J per batch, eta 0.5)"):
        assert name in html
    assert "[100,200,300]" in html.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "No such file"), ("{", "must be JSON"), ("{}", "lacks")]
)
def test_a_profile_that_cannot_be_read_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert main(["power-profile", str(path)]) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count(str(path)) == 1
    assert len(errors.splitlines()) == 1


def test_a_page_that_cannot_be_written_is_one_message(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["power-profile", str(profile), "--plot", str(profile / "out.html")]) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_without_plotly_drawing_says_what_to_install(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)  # as if it were not installed
    assert main(["power-profile", str(profile), "--plot", "out.html"]) == 1
    assert "pip install 'zeus-lightning[analysis]'" in capsys.readouterr().err


def test_the_console_script_is_installed_and_tells_its_exit_status() -> None:
    program = Path(sys.executable).with_name("zeus-lightning")
    run = [str(program), "power-profile", "no-such-file"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 1
