"""However a run ends, whatever strikes its GPU: no trace stays, and training goes on if it can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeDriver, FakeGpu
from gpu_programs import DriversClock, GpuNet, ManyBatches, power
from lightning.pytorch import Callback
from programs import BreaksOnException, trainer

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.loan import records_folder, settle_all

CHILD = Path(__file__).with_name("train_on_gpu_until_signalled.py")
DEADLINE_S = 120


@pytest.fixture
def gpu(fake_gpus: FakeDriver) -> FakeGpu:
    fake_gpus.freeze()
    fake_gpus.gpus[0].limit_mw = 250_000
    return fake_gpus.gpus[0]


class AtStep(Callback):
    """Calls something at the end of the training batch with this number, counted from 1."""

    def __init__(self, step: int, call: Callable[[], object], *, every: bool = False) -> None:
        self.step = step
        self.call = call
        self.every = every

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        step = trainer.fit_loop.epoch_loop.batch_idx + 1
        if step == self.step or (self.every and step > self.step):
            self.call()


def raise_(error: BaseException) -> None:
    raise error


def fit(driver: FakeDriver, *others: Callback, **arguments: Any) -> tuple[Any, GpuNet, list[str]]:
    """Train on GPU 0; the callback, the program, and what was warned of."""
    meter = DriversClock(driver)
    callback, net = power(meter=meter, **arguments), GpuNet(driver.gpus[0])
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer(callback, *others, max_epochs=1).fit(net, ManyBatches())
    finally:
        meter.close()
    messages = [str(warning.message) for warning in told]
    return callback, net, [text for text in messages if text.startswith("zeus:")]


def no_trace(gpu: FakeGpu, limit_mw: int = 250_000) -> None:
    assert gpu.limit_mw == limit_mw
    assert not records_folder().exists() or not list(records_folder().iterdir())


@pytest.mark.parametrize("step", [1, 5, 30, 150])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), SystemExit(3)])
def test_an_exception_puts_the_limit_back_and_comes_through(
    fake_gpus: FakeDriver, gpu: FakeGpu, error: BaseException, step: int
) -> None:
    seen = []

    def strike() -> None:
        seen.append(gpu.limit_mw)
        raise error

    with pytest.raises(type(error)) as raised:
        fit(fake_gpus, AtStep(step, strike))
    assert raised.value is error
    assert (seen[0] != 250_000) == (step > 1)
    no_trace(gpu)


def test_an_exception_of_a_callback_in_setup_puts_nothing_in_the_way_of_the_next_run(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    class FailsInSetup(Callback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        fit(fake_gpus, FailsInSetup())
    no_trace(gpu)
    fit(fake_gpus)


def test_a_fit_whose_end_another_callback_broke_off_is_no_obstacle_to_the_next(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    meter = DriversClock(fake_gpus)
    callback = power(meter=meter)
    with pytest.raises(OSError, match="in on_exception"):
        trainer(BreaksOnException(ZeroDivisionError()), callback).fit(GpuNet(gpu), ManyBatches())
    trainer(callback, max_epochs=1).fit(GpuNet(gpu), ManyBatches())
    assert callback.limit_w == 225
    no_trace(gpu)
    meter.close()


def child(gpu: int) -> subprocess.Popen[bytes]:
    """A process that trains without end on a GPU."""
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(gpu)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_signals_put_the_limit_back_a_second_process_is_refused_and_sigkill_is_made_good(
    fake_gpus: FakeDriver,
) -> None:
    fake_gpus.add_gpu()
    for gpu in fake_gpus.gpus:
        gpu.limit_mw = 260_000  # none of those that are tried
    killed, *others = children = [child(index) for index in range(3)]
    try:
        for process in children:
            assert process.stdout is not None
            assert process.stdout.readline() == b"training\n"
        assert 260_000 not in [gpu.limit_mw for gpu in fake_gpus.gpus]

        killed.send_signal(signal.SIGSTOP)  # it would go on to its next limit
        before_mw = fake_gpus.gpus[0].limit_mw
        with pytest.raises(ZeusPowerError, match=f"in use by process {killed.pid} "):
            fit(fake_gpus)
        assert fake_gpus.gpus[0].limit_mw == before_mw
        killed.send_signal(signal.SIGCONT)
        fit(fake_gpus, apply=False, min_seconds=0)  # who changes nothing is welcome

        for process, number in zip(others, (signal.SIGINT, signal.SIGTERM), strict=True):
            process.send_signal(number)
        for process in others:
            process.wait(timeout=DEADLINE_S)
        assert [gpu.limit_mw for gpu in fake_gpus.gpus[1:]] == [260_000] * 2
    finally:
        for process in children:
            process.kill()
            process.communicate()

    assert fake_gpus.gpus[0].limit_mw != 260_000
    fake_gpus.freeze()
    _, net, told = fit(fake_gpus)
    assert net.limits_w[0] == 260
    assert len(told) == 1
    assert f"is put back to 260 W, as process {killed.pid} " in told[0]
    no_trace(fake_gpus.gpus[0], 260_000)


def test_without_the_right_to_set_limits_an_error_says_what_is_needed_before_the_first_step(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    stepped: list[int] = []
    with pytest.raises(ZeusPowerError, match=r"root .*CAP_SYS_ADMIN.*--cap-add SYS_ADMIN"):
        fit(fake_gpus, AtStep(1, lambda: stepped.append(1)))
    assert stepped == []
    no_trace(gpu)


def test_a_gpu_without_power_control_as_under_mig_trains_on_with_one_warning(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    gpu.lack_power_control()
    callback, net, told = fit(fake_gpus)
    assert len(net.limits_w) == 200
    assert set(net.limits_w) == {250}
    assert not callback.profiled
    assert len(told) == 1
    assert "as under MIG" in told[0]


def test_a_gpu_whose_limit_is_fixed_trains_on_with_one_warning(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    gpu.fix_limit()
    callback, net, told = fit(fake_gpus)
    assert len(net.limits_w) == 200
    assert not callback.profiled
    assert len(told) == 1
    assert "is fixed at 250 W" in told[0]


def test_a_limit_changed_by_someone_else_is_told_and_the_window_measured_again(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    callback, net, told = fit(fake_gpus, AtStep(10, by_hand), step_w=100)
    assert net.limits_w[1:20] == [300] * 6 + [200] * 3 + [111] * 3 + [200] * 6 + [100]
    assert len(told) == 1
    assert "at a power limit of 200 W is void, because someone else changed a GPU's" in told[0]
    assert callback.limit_w == 200
    points = {point.limit_w: point for point in callback.profile.points}
    assert points[200].energy_j == pytest.approx(200 * 0.1 * (250 / 150) ** (1 / 3), rel=1e-3)
    no_trace(gpu)


def test_someone_who_changes_the_limit_again_and_again_ends_profiling(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    callback, net, told = fit(fake_gpus, AtStep(10, by_hand, every=True), step_w=100)
    assert callback.limit_w is None
    assert "no power limit is chosen: someone else changed" in told[-2]
    assert "changed by someone else after process" in told[-1]  # theirs is the later wish
    assert gpu.limit_mw == 111_000
    assert len(net.limits_w) == 200


def test_a_limit_that_the_driver_refuses_is_not_blamed_on_someone_else(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    refuse = AtStep(5, lambda: gpu.fail("set_limit", pynvml.NVML_ERROR_UNKNOWN))
    callback, net, told = fit(fake_gpus, refuse, step_w=100)
    assert callback.limit_w is None
    assert ["could not be set" in text for text in told] == [True, True, True, True, False]
    assert "a GPU's power limit could not be set 3 times while 200 W was measured" in told[3]
    assert "cannot set a power limit of 250 W" in told[4]
    assert "`zeus-lightning reset-power-limits` tries again" in told[4]
    assert len(net.limits_w) == 200
    gpu.fail("set_limit", 0)
    (left_behind,) = settle_all()
    assert "is put back to 250 W" in left_behind[2]
    no_trace(gpu)


def test_a_limit_changed_after_profiling_is_left_and_told_at_the_end(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    def by_hand() -> None:
        gpu.limit_mw = 111_000

    _, net, told = fit(fake_gpus, AtStep(150, by_hand))
    assert gpu.limit_mw == 111_000
    assert net.limits_w[-1] == 111
    assert len(told) == 1
    assert "is left so; it was 250 W before" in told[0]


def test_a_gpu_that_vanishes_in_mid_window_ends_profiling_and_training_goes_on(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    callback, net, told = fit(fake_gpus, AtStep(10, gpu.lose))
    assert len(net.limits_w) == 200
    assert callback.limit_w is None
    assert callback.profile is None
    assert "is void, because a GPU was lost" in told[0]
    assert "no power limit is chosen: a GPU was lost" in told[1]
    assert "`zeus-lightning reset-power-limits` tries again" in told[2]
    assert len(told) == 3


def test_a_gpu_that_is_lost_before_the_first_step_is_one_clear_error(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    class LosesIt(Callback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            gpu.lose()

    steps: list[int] = []
    with pytest.raises(ZeusPowerError, match=rf"{gpu.uuid}: GPU is lost; see `dmesg`"):
        fit(fake_gpus, LosesIt(), AtStep(1, lambda: steps.append(1)))
    assert steps == []


def test_a_known_limit_that_the_driver_refuses_is_told_and_training_goes_on(
    fake_gpus: FakeDriver, gpu: FakeGpu, tmp_path: Path
) -> None:
    class Refuses(Callback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            gpu.fail("set_limit", pynvml.NVML_ERROR_UNKNOWN)

    known = {"profile_path": tmp_path / "profile.json", "step_w": 100}
    fit(fake_gpus, **known)
    callback, net, told = fit(fake_gpus, Refuses(), **known)
    assert set(net.limits_w) == {250}
    assert callback.limit_w is None
    assert len(told) == 1
    assert "the power limit of 200 W cannot be set on rank 0" in told[0]
    no_trace(gpu)


def test_an_energy_counter_that_fails_for_a_while_costs_a_window(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    fail = AtStep(12, lambda: gpu.fail("energy", pynvml.NVML_ERROR_UNKNOWN))
    heal = AtStep(14, lambda: gpu.fail("energy", 0))
    callback, _, told = fit(fake_gpus, fail, heal, step_w=100)
    assert callback.limit_w == 200
    assert len(told) == 1
    assert "a GPU's energy or time could not be read" in told[0]
