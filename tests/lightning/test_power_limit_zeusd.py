"""`ZeusPowerLimitCallback` in a process that may not set limits, beside Zeus's daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeDriver, FakeGpu
from fake_zeusd import FakeZeusd
from gpu_programs import DriversClock, GpuNet, ManyBatches, power
from lightning.pytorch import Callback
from programs import AfterStep, trainer

from zeus_lightning.power.restore import records_folder, restore_all


@pytest.fixture
def daemon(
    fake_gpus: FakeDriver, gpu: FakeGpu, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeZeusd]:
    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", socket_path)
    with FakeZeusd(fake_gpus, socket_path) as daemon:
        yield daemon


def fit(gpu: FakeGpu, meter: DriversClock, *others: Callback, **arguments: Any) -> Any:
    callback = power(meter=meter, **arguments)
    trainer(callback, *others, max_epochs=1).fit(GpuNet(gpu), ManyBatches(300))
    return callback


def test_it_profiles_and_restores_through_the_daemon_and_says_so(
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    daemon: FakeZeusd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        callback = fit(gpu, gpu_meter)
    assert callback.limit_w == 225
    assert gpu.limit_mw == 250_000
    assert not list(records_folder().iterdir())
    assert f"set and restored through zeusd at {daemon.address}" in caplog.text


def test_a_daemon_that_restarts_while_limits_are_measured_costs_one_window(
    gpu: FakeGpu, gpu_meter: DriversClock, daemon: FakeZeusd
) -> None:
    restarts = AfterStep(10, daemon.end), AfterStep(16, daemon.start)
    callback = fit(gpu, gpu_meter, *restarts)
    assert callback.limit_w == 225
    assert gpu.limit_mw == 250_000


def test_a_daemon_that_stays_away_ends_profiling_and_training_goes_on(
    gpu: FakeGpu, gpu_meter: DriversClock, daemon: FakeZeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="; run `zeus-lightning reset-power-limits`"):
        callback = fit(gpu, gpu_meter, AfterStep(10, daemon.end))
    assert callback.limit_w is None
    assert gpu.limit_mw != 250_000
    daemon.start()
    monkeypatch.delenv("ZEUSD_SOCK_PATH")  # the record names it
    assert [finished for _, finished, _ in restore_all()] == [True]
    assert gpu.limit_mw == 250_000


def test_without_the_daemon_it_observes_as_without_the_permission(
    gpu: FakeGpu, gpu_meter: DriversClock, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_SOCK_PATH", socket_path)
    with pytest.warns(UserWarning, match="observing only: .*cannot be reached"):
        callback = fit(gpu, gpu_meter)
    assert callback.limit_w is None
