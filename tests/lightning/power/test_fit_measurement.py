"""Windows of measurement in whole fits: how long they are, and what cuts them."""

from __future__ import annotations

import contextlib
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
from pynvml import NVML_ERROR_NOT_SUPPORTED


def test_windows_last_min_seconds_and_their_length_is_fixed_once(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    net = GpuNet(gpu)
    fit(power(step_w=100, min_seconds=1.95, meter=gpu_meter), net)
    # The first 4 batches measure the time of a batch, 0.1 s; 20 of them last 1.95 s, at every limit
    assert phases(net.limits_w)[1:4] == [(300, 2 + 4 + 20), (200, 2 + 20), (100, 2 + 20)]


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


@pytest.mark.parametrize("batches", [100, 200])
def test_the_device_is_synchronized_at_the_windows_edges_only(
    fake_gpus: FakeDriver, gpu: FakeGpu, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronized: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    cuda = torch.device("cuda", 0)
    with contextlib.closing(DriversClock(fake_gpus, device=cuda)) as meter:
        callback = power(step_w=100, meter=meter)
        fit(callback, GpuNet(gpu), data=ManyBatches(batches))
    windows = len(callback.profile.points)
    assert windows == 3
    assert synchronized == [cuda] * (2 * windows)


def measured_phases(net: GpuNet) -> list[tuple[float, int]]:
    return phases(net.limits_w)[1:]


def test_a_window_that_the_end_of_an_epoch_cuts_is_measured_again(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(step_w=100, meter=gpu_meter), GpuNet(gpu)
    fit(callback, net, max_epochs=3, data=ManyBatches(batches=10), limit_val_batches=0)
    # 1 wait, 6 at 300 W, 3 at 200 W cut by the epoch's end, then 6 again
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


def test_a_window_that_a_validation_cuts_is_measured_again(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(step_w=100, meter=gpu_meter), GpuNet(gpu)
    fit(callback, net, val_check_interval=10)
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_window_that_a_checkpoint_cuts_is_measured_again(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path, weights_only: bool
) -> None:
    callback, net = power(step_w=100, meter=gpu_meter), GpuNet(gpu)
    checkpoints = ModelCheckpoint(
        tmp_path, every_n_train_steps=10, save_top_k=-1, save_weights_only=weights_only
    )
    fit(callback, net, checkpoints, enable_checkpointing=True)
    assert measured_phases(net)[:2] == [(300, 6), (200, 3 + 6)]


def test_a_slow_validation_does_not_change_the_figures(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    class SlowValidation(Callback):
        def on_validation_end(self, *args: Any) -> None:
            gpu._driver.advance(1000)

    callback = power(step_w=100, meter=gpu_meter)
    fit(callback, GpuNet(gpu), SlowValidation(), val_check_interval=10)
    assert callback.profile is not None
    for point in callback.profile.points:
        assert point.time_s == pytest.approx(expected(gpu, point.limit_w)[1], rel=1e-6)


def test_epochs_too_short_for_any_window_end_measuring_with_the_limits_found(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    with pytest.warns(UserWarning, match="no power limit is chosen: training is interrupted"):
        fit(callback, net, data=ManyBatches(batches=2), max_epochs=20)
    assert callback.limit_w is None
    assert callback.profile is None
    assert net.limits_w[-1] == 250
    assert len(net.limits_w) == 40


def test_weights_saved_too_often_for_any_window_end_measuring(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    checkpoints = ModelCheckpoint(
        tmp_path, every_n_train_steps=2, save_top_k=-1, save_weights_only=True
    )
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    with pytest.warns(UserWarning, match="no power limit is chosen: training is interrupted"):
        fit(callback, net, checkpoints, enable_checkpointing=True)
    assert callback.limit_w is None
    assert len(net.limits_w) == 200


def test_training_that_ends_in_mid_profile_leaves_no_trace_and_no_profile(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    callback = power(meter=gpu_meter, profile_path=tmp_path / "profile.json")
    fit(callback, GpuNet(gpu), data=ManyBatches(batches=20))
    assert gpu.limit_mw == 250_000
    assert callback.profiled
    assert callback.profile is None
    assert not (tmp_path / "profile.json").exists()


def test_windows_are_long_enough_for_a_slow_counter(fake_gpus: FakeDriver) -> None:
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.35
    slow = fake_gpus.add_gpu()
    meter = DriversClock(fake_gpus, (2,))
    callback, net = power(step_w=100, meter=meter), GpuNet(slow)
    fit(callback, net, data=ManyBatches(batches=700))
    meter.close()
    assert callback.profile is not None
    assert len(callback.profile.points) == 3
    for point in callback.profile.points:
        energy_j, time_s = expected(slow, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=0.025)
        assert point.time_s == pytest.approx(time_s)
    # Four batches show how slow it is, within one refresh; the others see more than 40 of them.
    assert 40 <= phases(net.limits_w)[2][1] * expected(slow, 200)[1] / 0.35 <= 75


def test_a_gpu_without_an_energy_counter_is_measured_by_samples(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    gpu.fail("energy", NVML_ERROR_NOT_SUPPORTED)
    meter = DriversClock(fake_gpus)
    assert meter.samples
    callback, net = power(step_w=100, meter=meter), GpuNet(gpu)
    fit(callback, net)
    meter.close()
    assert callback.profile is not None
    assert len(callback.profile.points) == 3
    assert phases(net.limits_w)[1:4] == [(300, 2 + 4), (200, 2 + 4), (100, 2 + 4)]


@pytest.mark.parametrize(
    "gpu_arguments", [{"noise_j": 20.0}, {"leak_w": 40.0, "warm_s": 4.0}], ids=["noisy", "cold"]
)
def test_a_noisy_counter_or_a_cold_gpu_hardly_misleads_the_choice(
    fake_gpus: FakeDriver, gpu_arguments: dict[str, float]
) -> None:
    fake_gpus.freeze()
    fake_gpus.refresh_s = 0.1
    odd = fake_gpus.add_gpu(**gpu_arguments)
    meter = DriversClock(fake_gpus, (2,))
    callback = power(search="information", profile_steps=20, meter=meter)
    fit(callback, GpuNet(odd, noise=0.01), data=ManyBatches(batches=800))
    meter.close()
    costs = {}
    for limit_w in range(100, 325, 25):
        odd.limit_mw = 1000 * limit_w
        costs[limit_w] = odd.step_s(0.1) * (limit_w + 300)
    assert callback.limit_w is not None
    assert costs[callback.limit_w] <= 1.01 * min(costs.values())
