"""Whole fits of `ZeusPowerLimitCallback` on the fake GPU: what is measured, chosen and set."""

from __future__ import annotations

import gc
import math
import pickle
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import FakeDriver, FakeGpu
from gpu_programs import (
    ALL_LIMITS,
    DriversClock,
    GpuNet,
    ManyBatches,
    expected,
    fit,
    phases,
    power,
    zeus_warnings,
)
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from programs import Whole, trainer

from zeus_lightning import (
    ZeusConfigError,
    ZeusMeterError,
    ZeusPowerError,
    ZeusPowerLimitCallback,
)
from zeus_lightning.power_limit import _batches_left


def test_every_limit_is_measured_from_the_highest_down_and_the_best_one_is_set(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    fit(callback, net)
    assert (
        phases(net.limits_w)
        == [
            (300, 10),  # the first window is used for nothing
            *((limit, 6) for limit in ALL_LIMITS[1:]),
            (225, 200 - 4 - 6 * len(ALL_LIMITS)),
        ]
    )
    assert (callback.limit_w, callback.profiled) == (225, True)
    assert gpu.limit_mw == 250_000  # as found, not the highest
    profile = callback.profile
    assert profile is not None
    assert [point.limit_w for point in profile.points] == ALL_LIMITS
    for point in profile.points:
        energy_j, time_s = expected(gpu, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=1e-3)
        assert point.time_s == pytest.approx(time_s, rel=1e-6)
    assert profile.device_model == "Fake H100"
    assert (profile.num_devices, profile.batch_size, profile.max_power_w) == (1, 8, 300)
    assert (profile.chosen_w, profile.selector) == (225, "zeus-cost")

    again = GpuNet(gpu)
    fit(callback, again)  # a second fit of the same callback measures again
    assert again.limits_w == net.limits_w
    assert gpu.limit_mw == 250_000


@pytest.mark.parametrize(
    ("limits", "batches"),
    [
        ({"max_epochs": 3}, 60),
        ({"max_epochs": 3, "max_steps": 25}, 25),
        ({"max_epochs": 3, "max_steps": 10, "accumulate_grad_batches": 4}, 40),
        ({"max_epochs": -1, "max_steps": 3}, 3),
        ({"max_epochs": -1, "max_steps": -1}, math.inf),
        ({"max_epochs": 3, "max_steps": 50, "current_epoch": 1, "global_step": 20}, 30),
    ],
)
def test_epochs_and_steps_of_the_trainer_end_a_run(limits: dict[str, Any], batches: float) -> None:
    none = {"max_steps": -1, "current_epoch": 0, "global_step": 0, "accumulate_grad_batches": 1}
    runner: Any = SimpleNamespace(num_training_batches=20, **(none | limits))
    assert _batches_left(runner) == batches


def test_a_selector_with_a_cost_measures_fewer_limits_and_chooses_its_own(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    for selector, chosen_w in (("zeus-cost", 225), ("max-slowdown:1.2", 200), ("time", 300)):
        callback = power(selector=selector, meter=gpu_meter)
        fit(callback, GpuNet(gpu))
        assert callback.limit_w == chosen_w
        assert callback.profile is not None
        assert len(callback.profile.points) < len(ALL_LIMITS)


def test_a_pickle_of_the_callback_has_no_part_in_its_fit(gpu: FakeGpu) -> None:
    class EndsCopy(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step == 3:
                before_mw, other = gpu.limit_mw, pickle.loads(pickle.dumps(callback))
                other.on_exception(trainer, module, ZeroDivisionError())
                del other
                gc.collect()
                assert gpu.limit_mw == before_mw != 250_000

    callback, net = power(meter="nvml:0"), GpuNet(gpu)
    fit(callback, net, EndsCopy())
    assert callback.profiled
    assert gpu.limit_mw == 250_000


def test_fast_dev_run_validate_test_and_predict_do_nothing(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    class WholeGpuNet(Whole, GpuNet):
        pass

    gpu.refuse_limits()
    callback = power(meter=gpu_meter, on_unavailable="raise")
    trainer(callback, fast_dev_run=7).fit(WholeGpuNet(gpu), ManyBatches())
    runner, data = trainer(callback), ManyBatches()
    runner.validate(WholeGpuNet(gpu), data)
    runner.test(WholeGpuNet(gpu), data.val_dataloader())
    runner.predict(WholeGpuNet(gpu), data.val_dataloader())
    assert not callback.profiled
    assert gpu.limit_mw == 250_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selector": "cheapest"}, "selector is 'cheapest'"),
        ({"step_w": 0}, "step_w is 0; it must be an integer, 1 or more"),
        ({"warmup_steps": False}, "warmup_steps is False"),
        ({"profile_steps": 40.0}, r"profile_steps is 40\.0"),
        ({"min_seconds": -0.1}, r"min_seconds is -0\.1; it must be"),
        ({"min_seconds": math.inf}, "min_seconds is inf"),
        ({"min_seconds": True}, "min_seconds is True"),
        ({"on_unavailable": "observe"}, "on_unavailable is 'observe'.*warn or raise"),
    ],
)
def test_an_invalid_argument_is_an_error_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ZeusConfigError, match=message):
        ZeusPowerLimitCallback(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_w": 201}, "step_w is 201; it must be .* at most 200"),
        ({"meter": "nvml"}, 'trains on cpu; pass meter="auto", or name the GPUs'),
        ({"meter": "cpu-estimate"}, "the meter is cpu-estimate"),
    ],
)
def test_what_does_not_fit_the_program_is_an_error_before_the_first_step(
    gpu: FakeGpu, arguments: dict[str, Any], message: str
) -> None:
    net = GpuNet(gpu)
    with pytest.raises(ZeusConfigError, match=message):
        fit(power(**{"meter": "nvml:0"} | arguments), net)
    assert net.limits_w == []
    assert gpu.limit_mw == 250_000


# Where limits cannot be set


@pytest.mark.parametrize(
    ("change", "meter", "message", "instead"),
    [
        (None, "auto", "this run trains on cpu, not on a GPU", "power-limit search disabled"),
        (FakeDriver.unload, "nvml:0", "cannot start NVML", "power-limit search disabled"),
        (FakeGpu.lack_power_control, "nvml:0", "MIG slices", "power-limit search disabled"),
        (FakeGpu.fix_limit, "nvml:0", "is fixed at 250 W", "power-limit search disabled"),
        (FakeGpu.refuse_limits, "nvml:0", "root or with CAP_SYS_ADMIN", "observing only"),
    ],
)
def test_where_limits_cannot_be_set_training_goes_on_after_one_warning_or_an_error_is_raised(
    fake_gpus: FakeDriver,
    gpu: FakeGpu,
    recwarn: pytest.WarningsRecorder,
    change: Any,
    meter: str,
    message: str,
    instead: str,
) -> None:
    if change is not None:
        change(fake_gpus if change is FakeDriver.unload else gpu)
    callback, net = power(meter=meter), GpuNet(gpu)
    fit(callback, net, data=ManyBatches(20))
    assert net.limits_w == [250] * 20
    assert (callback.profiled, callback.limit_w, callback.profile) == (False, None, None)
    (warned,) = zeus_warnings(recwarn)
    assert re.match(f"zeus: {instead}: .*{message}", warned)

    net = GpuNet(gpu)
    with pytest.raises((ZeusPowerError, ZeusMeterError), match=message):
        fit(power(meter=meter, on_unavailable="raise"), net)
    assert net.limits_w == []
    assert gpu.limit_mw == 250_000


def test_the_help_of_lightning_cli_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parser = ArgumentParser(prog="fit")
    parser.add_class_arguments(ZeusPowerLimitCallback, "power")
    lines = parser.format_help().partition("Path to a configuration file.\n")[2].splitlines()
    assert 20 <= len(lines) <= 40
