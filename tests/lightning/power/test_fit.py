"""Fits that only observe: nothing is changed, and what is known is reported."""

from __future__ import annotations

import logging
from pathlib import Path

import pynvml
import pytest
from fake_nvml import FakeGpu
from gpu_programs import (
    DriversClock,
    GpuNet,
    expected,
    fit,
    phases,
    power,
)


def test_observing_changes_nothing_and_reports_what_would_be_set(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=gpu_meter, profile_path=path), GpuNet(gpu))
    callback, net = power(meter=gpu_meter, profile_path=path, apply=False), GpuNet(gpu)
    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert callback.limit_w is None
    assert "would set the power limit to 225 W" in caplog.text


def test_observing_without_a_profile_reports_the_limit_in_force(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    callback, net = power(meter=gpu_meter, profile_path=path, apply=False), GpuNet(gpu)
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    energy_j, _ = expected(gpu, 250)
    assert f"power limit 250 W: {energy_j:.4g} J" in caplog.text
    assert not callback.profiled
    assert not path.exists()


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, None])
def test_where_limits_cannot_be_set_or_stored_it_observes_on_request(
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    code: int | None,
) -> None:
    if code is None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    else:
        gpu.fail("set_limit", code)
    callback, net = power(meter=gpu_meter, on_no_permission="observe"), GpuNet(gpu)
    with pytest.warns(UserWarning, match="observing only"):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert not callback.profiled
