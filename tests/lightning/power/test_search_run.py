"""The search in whole fits: how long a run counts, how windows are measured, and observing."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvml import FakeDriver, FakeGpu
from gpu_programs import (
    DriversClock,
    GpuNet,
    ManyBatches,
    expected,
    fit,
    phases,
    power,
)
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

# Windows


def test_power_that_lags_behind_the_limit_is_waited_for(fake_gpus: FakeDriver) -> None:
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.1
    lagging = fake_gpus.add_gpu(lag_s=0.1)
    meter = DriversClock(fake_gpus, (2,))
    callback = power(warmup_steps=8, profile_steps=40, step_w=100, meter=meter)
    fit(callback, GpuNet(lagging, noise=0.02))
    meter.close()
    assert callback.profile is not None
    for point in callback.profile.points:
        energy_j, time_s = expected(lagging, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=0.05)
        assert point.time_s == pytest.approx(time_s, rel=0.02)


def test_the_device_is_synchronized_at_the_windows_edges_only(
    fake_gpus: FakeDriver, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronized: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    cuda = torch.device("cuda", 0)
    with contextlib.closing(DriversClock(fake_gpus, device=cuda)) as meter:
        callback = power(step_w=100, meter=meter)
        fit(callback, GpuNet(gpu))
    windows = len(callback.profile.points)
    assert windows == 3
    assert synchronized == [cuda] * (2 * (1 + windows))  # the first one is used for nothing


@pytest.mark.parametrize("cut_by", ["epoch", "validation", "checkpoint"])
def test_a_window_that_is_cut_is_measured_again(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, cut_by: str
) -> None:
    class SlowValidation(Callback):
        def on_validation_end(self, *args: Any) -> None:
            gpu._driver.advance(1000)

    arguments: dict[str, Any] = {"validation": {"val_check_interval": 10}}.get(cut_by, {})
    others: list[Callback] = [SlowValidation()]
    if cut_by == "epoch":
        arguments = {"max_epochs": 4, "data": ManyBatches(batches=10), "limit_val_batches": 0}
    elif cut_by != "validation":
        others.append(ModelCheckpoint(tmp_path, every_n_train_steps=10, save_top_k=-1))
        arguments = {"enable_checkpointing": True}
    callback, net = power(step_w=100, meter=gpu_meter), GpuNet(gpu)
    fit(callback, net, *others, **arguments)
    # 10 at 300 W, 6 at 200 W, 4 at 100 W that are cut, then 6 again
    assert phases(net.limits_w)[:3] == [(300, 10), (200, 6), (100, 4 + 6)]
    assert callback.profile is not None
    for point in callback.profile.points:
        assert point.time_s == pytest.approx(expected(gpu, point.limit_w)[1], rel=1e-6)


def test_epochs_too_short_for_any_window_end_measuring_with_the_limits_found(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    with pytest.warns(UserWarning, match="power limit was chosen: epochs, .* too close together"):
        fit(callback, net, data=ManyBatches(batches=2), max_epochs=20)
    assert callback.limit_w is None
    assert callback.profile is None
    assert net.limits_w[-1] == 250
    assert len(net.limits_w) == 40


def test_training_that_ends_in_mid_profile_leaves_no_trace_and_no_profile(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    callback = power(meter=gpu_meter, profile_path=tmp_path / "profile.json")
    fit(callback, GpuNet(gpu), data=ManyBatches(batches=20))
    assert gpu.limit_mw == 250_000
    assert callback.profiled
    assert callback.profile is None
    assert not (tmp_path / "profile.json").exists()


# Observing


def test_observing_changes_nothing_and_reports_what_would_be_set(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.json"
    fit(power(meter=gpu_meter, profile_path=path), GpuNet(gpu))
    callback, net = power(meter=gpu_meter, profile_path=path, apply=False), GpuNet(gpu)
    gpu.refuse_limits()
    with caplog.at_level(logging.INFO):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert callback.limit_w is None
    assert "the power limit would be 225 W" in caplog.text


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


def test_where_no_record_can_be_written_no_limit_is_set(
    gpu: FakeGpu, gpu_meter: DriversClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    with pytest.warns(UserWarning, match=r"observing only: .*set \$XDG_STATE_HOME to a writable"):
        fit(callback, net)
    assert phases(net.limits_w) == [(250, 200)]
    assert not callback.profiled
