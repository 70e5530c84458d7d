"""Whole fits of `ZeusPowerLimitCallback` on the fake GPU: what is measured, chosen and applied."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pynvml
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
    zeus_warnings,
)
from lightning.pytorch import Callback
from programs import trainer

from zeus_lightning import (
    ZeusConfigError,
    ZeusMeterError,
    ZeusPowerError,
    ZeusPowerLimitCallback,
)

ALL_LIMITS = list(range(300, 75, -25))


def test_every_limit_is_measured_from_the_highest_down_and_the_best_one_applied(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    fit(callback, net)
    assert phases(net.limits_w) == [
        (250, 1),  # wait_steps
        *((limit, 6) for limit in ALL_LIMITS),
        (225, 200 - 1 - 6 * len(ALL_LIMITS)),
    ]
    assert callback.limit_w == 225
    assert callback.profiled
    assert gpu.limit_mw == 250_000  # as found, not the highest


def test_what_is_measured_is_what_the_gpu_spends(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    callback = power(meter=gpu_meter)
    fit(callback, GpuNet(gpu))
    profile = callback.profile
    assert profile is not None
    assert [point.limit_w for point in profile.points] == ALL_LIMITS
    for point in profile.points:
        energy_j, time_s = expected(gpu, point.limit_w)
        assert point.energy_j == pytest.approx(energy_j, rel=1e-3)
        assert point.time_s == pytest.approx(time_s, rel=1e-6)
    assert (profile.device_model, profile.driver) == ("Fake H100", "000.00.fake")
    assert (profile.num_devices, profile.batch_size, profile.max_power_w) == (1, 8, 300)
    assert (profile.chosen_w, profile.selector, profile.search) == (225, "zeus-cost", "sweep")


@pytest.mark.parametrize(
    ("selector", "chosen_w"),
    [("energy", 100), ("time", 300), ("max-slowdown:1.2", 200), ("max-slowdown:1.0", 300)],
)
def test_the_selector_chooses(
    gpu: FakeGpu, gpu_meter: DriversClock, selector: str, chosen_w: int
) -> None:
    callback, net = power(selector=selector, meter=gpu_meter), GpuNet(gpu)
    fit(callback, net)
    assert callback.limit_w == net.limits_w[-1] == chosen_w


def test_a_short_run_measures_fewer_limits_and_chooses_the_same(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback = power(search="information", meter=gpu_meter)
    fit(callback, GpuNet(gpu))
    assert callback.profile is not None
    assert callback.limit_w == 225
    assert len(callback.profile.points) < len(ALL_LIMITS)


def test_limits_stay_in_a_range_that_is_no_multiple_of_the_step(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    odd = fake_gpus.add_gpu(min_w=110, max_w=305)
    meter = DriversClock(fake_gpus, (2,))
    net = GpuNet(odd)
    fit(power(step_w=60, meter=meter), net)
    meter.close()
    assert [limit for limit, _ in phases(net.limits_w)] == [305, 245, 185, 125, 245]


def test_a_second_fit_of_the_same_callback_measures_again(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    callback = power(meter=gpu_meter, step_w=100)
    fit(callback, GpuNet(gpu))
    net = GpuNet(gpu)
    fit(callback, net)
    assert [limit for limit, _ in phases(net.limits_w)] == [250, 300, 200, 100, 200]
    assert gpu.limit_mw == 250_000


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))]
)
def test_a_copy_of_the_callback_has_no_part_in_its_fit(
    gpu: FakeGpu, copied: Callable[[Any], Any]
) -> None:
    class EndsCopy(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step == 3:
                before_mw, other = gpu.limit_mw, copied(callback)
                other.on_train_batch_end(trainer, module, *args)
                other.on_exception(trainer, module, ZeroDivisionError())
                other.setup(trainer, module, "validate")
                del other
                gc.collect()
                assert gpu.limit_mw == before_mw != 250_000

    callback, net = power(), GpuNet(gpu)
    fit(callback, net, EndsCopy())
    assert callback.profiled
    assert [limit for limit, _ in phases(net.limits_w)][:3] == [250, 300, 275]
    assert gpu.limit_mw == 250_000


def test_fast_dev_run_validate_test_and_predict_do_nothing(
    gpu: FakeGpu, gpu_meter: DriversClock
) -> None:
    class Whole(GpuNet):
        def test_step(self, batch: Any, index: int) -> None:
            pass

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch[0])

    gpu.fail("set_limit", pynvml.NVML_ERROR_NO_PERMISSION)
    callback = power(meter=gpu_meter)
    trainer(callback, fast_dev_run=7).fit(Whole(gpu), ManyBatches())
    runner, data = trainer(callback), ManyBatches()
    runner.validate(Whole(gpu), data)
    runner.test(Whole(gpu), data.val_dataloader())
    runner.predict(Whole(gpu), data.val_dataloader())
    assert not callback.profiled
    assert gpu.limit_mw == 250_000


def test_after_profiling_the_batch_hooks_do_nothing(gpu: FakeGpu, gpu_meter: DriversClock) -> None:
    class Untouchable:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was used")

    class AtTheEnd(Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            if trainer.global_step == 150:
                untouchable: Any = Untouchable()
                for _ in range(100):
                    callback.on_train_batch_start(*[untouchable] * 4)
                    callback.on_train_batch_end(*[untouchable] * 5)
                self.called = True

    callback, at_the_end = power(meter=gpu_meter), AtTheEnd()
    fit(callback, GpuNet(gpu), at_the_end)
    assert at_the_end.called


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selector": "cheapest"}, "selector is 'cheapest'"),
        ({"selector": "max-slowdown:0.5"}, "a FACTOR of at least 1"),
        ({"search": "random"}, "search is 'random'.*information or sweep"),
        ({"step_w": 0}, "step_w is 0"),
        ({"step_w": 12.5}, r"step_w is 12\.5"),
        ({"wait_steps": -1}, "wait_steps is -1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"profile_steps": 0}, "profile_steps is 0"),
        ({"min_seconds": -0.1}, r"min_seconds is -0\.1"),
        ({"on_no_gpu": "raise"}, "on_no_gpu is 'raise'.*warn or error"),
        ({"token": "se cret", "url": "http://127.0.0.1:1"}, "the token contains blanks"),
        ({"on_no_permission": "ignore"}, "on_no_permission is 'ignore'.*raise or observe"),
        ({"url": "localhost"}, "url is 'localhost'"),
    ],
)
def test_an_invalid_argument_is_an_error_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ZeusConfigError, match=message):
        ZeusPowerLimitCallback(**arguments)


@pytest.mark.parametrize("meter", ["nvml", "nvml:0", "auto"])
def test_without_an_nvidia_gpu_training_continues_with_one_warning(
    fake_gpus: FakeDriver, gpu: FakeGpu, recwarn: pytest.WarningsRecorder, meter: str
) -> None:
    fake_gpus.unload()
    callback, net = power(meter=meter), GpuNet(gpu)
    fit(callback, net)
    assert len(net.limits_w) == 200
    assert (callback.profiled, callback.limit_w, callback.profile) == (False, None, None)
    assert zeus_warnings(recwarn) == [
        "zeus: this machine has no NVIDIA GPU, or no driver for it; no power limit is searched for"
    ]


def test_without_an_nvidia_gpu_it_is_an_error_on_request(
    fake_gpus: FakeDriver, gpu: FakeGpu
) -> None:
    fake_gpus.unload()
    net = GpuNet(gpu)
    with pytest.raises(ZeusPowerError, match="this machine has no NVIDIA GPU") as error:
        fit(power(on_no_gpu="error"), net)
    assert error.value.fields == {"cause": "no_gpu"}
    assert net.limits_w == []


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_UNKNOWN]
)
def test_a_gpu_whose_driver_does_not_work_is_an_error_not_taken_for_none(
    fake_gpus: FakeDriver, gpu: FakeGpu, code: int
) -> None:
    fake_gpus.fail_init(code)
    with pytest.raises(ZeusMeterError, match="cannot start NVML"):
        fit(power(), GpuNet(gpu))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step_w": 201}, "step_w is 201; it must be .* at most 200"),
        ({"meter": "nvml"}, "trains on cpu: name the GPUs"),
        ({"meter": "cpu-estimate"}, "the meter is cpu-estimate"),
        ({"url": "http://127.0.0.1:1"}, "there is no job_id"),
        ({"job_id": "mine"}, "there is no service"),
    ],
)
def test_what_does_not_fit_the_program_is_an_error_before_the_first_step(
    gpu: FakeGpu, arguments: dict[str, Any], message: str
) -> None:
    net = GpuNet(gpu)
    with pytest.raises(ZeusConfigError, match=message):
        fit(power(**arguments), net)
    assert net.limits_w == []
    assert gpu.limit_mw == 250_000
