"""A load that changes in mid-run: the limit is checked again, at the end of an epoch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, ManyBatches, fit, phases, power
from lightning.pytorch import Callback

from zeus_lightning.power.load_change import EpochTimes, time_noise
from zeus_lightning.power.selectors import PowerPoint


class Changes(Callback):
    """Changes the GPU's load at the start of the third epoch."""

    def __init__(self, gpu: FakeGpu, demand_w: float | None = None, work: float = 1.0) -> None:
        self.gpu, self.demand_w, self.work = gpu, demand_w, work

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 2:
            pl_module.work_s *= self.work
            if self.demand_w is not None:
                self.gpu.set_load(1)
                self.gpu._state.demand_w = self.demand_w


def epochs(net: GpuNet, batches: int = 100) -> list[list[tuple[float, int]]]:
    """The phases of each epoch."""
    starts = range(0, len(net.limits_w), batches)
    return [phases(net.limits_w[start : start + batches]) for start in starts]


def test_a_load_that_stays_is_not_measured_again(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    net = GpuNet(gpu, noise=0.02)
    fit(power(meter=gpu_meter), net, data=ManyBatches(100), max_epochs=5, val_check_interval=30)
    assert [each[0][0] for each in epochs(net)[1:]] == [225] * 4
    assert all(len(each) == 1 for each in epochs(net)[1:])


def test_batches_that_take_longer_cost_one_window_where_the_limit_is_still_best(
    gpu: FakeGpu, gpu_meter: DriversClock, caplog: pytest.LogCaptureFixture
) -> None:
    class SlowLoading(Callback):
        """From the third epoch on, each epoch takes longer to begin."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch >= 2:
                gpu._driver.advance(2.0)

    net = GpuNet(gpu)
    callback = power(meter=gpu_meter)
    runner = [SlowLoading()]
    with caplog.at_level(logging.INFO):
        fit(callback, net, *runner, data=ManyBatches(100), max_epochs=6)
    assert caplog.text.count("is checked") == 1
    assert [line for line in caplog.messages if line.startswith("zeus: power limit ")][
        -1
    ].startswith("zeus: power limit 225 W")
    assert all(each == [(225, 100)] for each in epochs(net)[1:])


@pytest.mark.parametrize("search", ["information", "sweep"])
def test_a_load_that_changes_is_searched_again_and_its_best_limit_applied(
    gpu: FakeGpu, gpu_meter: DriversClock, search: str
) -> None:
    net = GpuNet(gpu)
    callback = power(meter=gpu_meter, search=search)
    changes = Changes(gpu, demand_w=160, work=1.3)
    fit(callback, net, changes, data=ManyBatches(100), max_epochs=6)
    measured = callback.profile
    assert measured is not None
    assert measured.chosen_w == 225  # of the load that later runs begin with
    costs = {w: gpu_cost(gpu, w) for w in range(100, 325, 25)}
    assert callback.limit_w is not None
    assert costs[callback.limit_w] <= 1.01 * min(costs.values())
    assert net.limits_w[-1] == callback.limit_w
    assert gpu.limit_mw == 250_000


def test_a_stored_limit_off_this_runs_grid_is_checked_too(
    gpu: FakeGpu, gpu_meter: DriversClock, tmp_path: Path
) -> None:
    path, data = tmp_path / "profile.json", ManyBatches(100)
    fit(power(meter=gpu_meter, profile_path=path), GpuNet(gpu), data=data)
    net = GpuNet(gpu)
    callback = power(meter=gpu_meter, profile_path=path, step_w=40, search="information")
    fit(callback, net, Changes(gpu, demand_w=160, work=1.3), data=data, max_epochs=6)
    assert set(net.limits_w[:300]) == {225}  # not one of 300, 260, 220, 180, 140, 100
    costs = {w: gpu_cost(gpu, w) for w in [225, *range(100, 301, 40)]}
    assert callback.limit_w is not None
    assert costs[callback.limit_w] <= 1.01 * min(costs.values())


def gpu_cost(gpu: FakeGpu, limit_w: int) -> float:
    """The cost of a step under a limit, at eta 0.5."""
    power_w = min(limit_w, gpu._state.demand_w)
    return ((gpu._state.demand_w - 50) / (power_w - 50)) ** (1 / 3) * (power_w + 300)


def test_a_limit_that_cannot_be_checked_stays(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    class Interrupts(Callback):
        """Later epochs are validated too often for a window."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                pl_module.work_s *= 2
            if trainer.current_epoch >= 2:
                trainer.val_check_batch = 2

    net = GpuNet(gpu)
    with pytest.warns(UserWarning, match="the power limit is not checked"):
        fit(power(meter=gpu_meter), net, Interrupts(), data=ManyBatches(100), max_epochs=5)
    assert set(net.limits_w[100:]) == {225}
    assert gpu.limit_mw == 250_000


def test_the_noise_of_windows_widens_what_is_taken_for_noise() -> None:
    windows = [PowerPoint(200, 1.0, 1.0), PowerPoint(200, 1.0, 1.1), PowerPoint(100, 1.0, 2.0)]
    assert time_noise(windows) == pytest.approx(0.0674, abs=1e-4)
    assert time_noise(windows[1:]) == 0
    for noise, moved in ((0.0, True), (0.06, False)):
        times = EpochTimes(noise)
        assert not times.has_moved(1.0)
        assert not times.has_moved(1.04)
        assert times.has_moved(1.1) == moved


def test_slow_growth_is_compared_with_the_first_epoch_and_not_with_the_last() -> None:
    times = EpochTimes(0.0)
    moved = [times.has_moved(1.02**epoch) for epoch in range(4)]
    assert moved == [False, False, False, True]
