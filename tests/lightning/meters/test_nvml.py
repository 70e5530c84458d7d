"""The NVML meter, on the fake driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import FakeDriver
from forked import in_forked_child
from waiting import LIMIT_S

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import nvml
from zeus_lightning.meters.nvml import Gpu, NvmlMeter

SAMPLING_THREAD = "zeus-nvml-power"


def make_old(driver: FakeDriver, *indices: int) -> None:
    """Turn GPUs into ones older than Volta, which report their power but not their energy."""
    for index in indices:
        driver.gpus[index].fail("energy", pynvml.NVML_ERROR_NOT_SUPPORTED)


def sampling_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == SAMPLING_THREAD]


# What it counts


def test_the_limit_in_force_and_the_default_one_are_means_over_the_gpus(
    fake_gpus: FakeDriver,
) -> None:
    fake_gpus.gpus[1].limit_mw = 200_000
    for indices, limits_w in (([0], (300, 300)), ([1], (200, 300)), ([0, 1], (250, 300))):
        meter = NvmlMeter(indices)
        assert meter.power_limits_w() == limits_w
        meter.close()
    meter = NvmlMeter([0, 1])
    for error in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST):
        fake_gpus.gpus[1].fail("limit", error)
        assert meter.power_limits_w() is None
    meter.close()


# Figures that cannot be true


def test_a_counter_that_stands_still_under_load_is_an_error(
    fake_gpus: FakeDriver, drivers_clock: None
) -> None:
    fake_gpus.refresh_s = 1e9  # never
    meter = NvmlMeter([0])
    fake_gpus.advance(10)
    assert meter.read().energy_j == 0  # at rest it may
    fake_gpus.gpus[0].set_load(0.5)
    with pytest.raises(ZeusMeterError, match=r"stayed at \d+ mJ for 10 s under load"):
        meter.read()
    fake_gpus.gpus[0].fail("use", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(ZeusMeterError, match="under load"):  # not known to rest
        meter.read()
    fake_gpus.refresh_s = 0
    assert meter.read().energy_j > 400  # of 50 W for 10 s, on a clock that was not frozen at first
    meter.close()


def test_a_counter_read_twice_within_its_refresh_is_none(
    fake_gpus: FakeDriver, drivers_clock: None
) -> None:
    fake_gpus.refresh_s = 0.1
    fake_gpus.gpus[0].set_load(1)
    meter = NvmlMeter([0])
    for _ in range(100):
        fake_gpus.advance(0.06)
        meter.read()
    assert meter.read().energy_j == pytest.approx(1800, rel=0.02)
    meter.close()


def test_a_power_of_zero_under_load_is_refused(fake_gpus: FakeDriver) -> None:
    gpu = fake_gpus.add_gpu(idle_w=0, demand_w=0)
    make_old(fake_gpus, 2)
    NvmlMeter([2]).close()
    gpu.set_load(1)
    with pytest.raises(ZeusMeterError, match=r"a power of 0 W under load.*does not measure this"):
        NvmlMeter([2])


# MaxPower


def test_max_power_is_the_highest_settable_limit_not_the_one_in_force(
    fake_gpus: FakeDriver,
) -> None:
    fake_gpus.add_gpu(max_w=400, default_w=250)
    meter = NvmlMeter([2])
    assert meter.max_power_w == 400
    meter.close()


@pytest.mark.parametrize(
    ("unsupported", "max_power_w"),
    [(["constraints"], 250), (["constraints", "enforced"], 200)],
)
def test_where_no_limit_can_be_set_max_power_is_the_limit_in_force_then_the_default(
    fake_gpus: FakeDriver, unsupported: list[str], max_power_w: float
) -> None:
    gpu = fake_gpus.add_gpu(max_w=400, default_w=200)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(2)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, 250_000)
    pynvml.nvmlShutdown()
    for kind in unsupported:
        gpu.fail(kind, pynvml.NVML_ERROR_NOT_SUPPORTED)
    meter = NvmlMeter([2])
    assert meter.max_power_w == max_power_w
    meter.close()


# GPUs older than Volta


@pytest.fixture
def drivers_clock(fake_gpus: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the meter the driver's clock, which then moves only by `advance`."""

    def now_s() -> float:
        with fake_gpus.locked() as now_s:
            return now_s

    fake_gpus.freeze()
    monkeypatch.setattr(nvml, "time", SimpleNamespace(monotonic=now_s))


@pytest.mark.usefixtures("drivers_clock")
def test_the_power_of_an_old_gpu_is_integrated_as_its_load_changes(fake_gpus: FakeDriver) -> None:
    make_old(fake_gpus, 0)
    gpu = fake_gpus.gpus[0]
    meter = NvmlMeter([0], sample_interval_s=60)
    before, before_mj = meter.read(), gpu.energy_mj()
    for load in (1.0, 0.3, 0.7, 0.0):
        gpu.set_load(load)
        meter.read()
        fake_gpus.advance(0.3)
        meter.read()
    after, after_mj = meter.read(), gpu.energy_mj()
    meter.close()
    assert (after - before).energy_j == pytest.approx((after_mj - before_mj) / 1e3)


def test_the_power_of_an_old_gpu_is_sampled_between_readings(
    fake_gpus: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    energy_j, samples = Gpu.energy_j, Queue[str]()

    def note(gpu: Gpu) -> float:
        samples.put(threading.current_thread().name)
        return energy_j(gpu)

    monkeypatch.setattr(Gpu, "energy_j", note)
    make_old(fake_gpus, 0)
    meter = NvmlMeter([0], sample_interval_s=0.01)
    threads = [samples.get(timeout=LIMIT_S) for _ in range(5)]
    meter.close()
    assert threads == [threading.current_thread().name] + [SAMPLING_THREAD] * 4


@pytest.mark.usefixtures("drivers_clock")
def test_old_and_new_gpus_are_counted_together(fake_gpus: FakeDriver) -> None:
    make_old(fake_gpus, 1)
    for gpu in fake_gpus.gpus:
        gpu.set_load(1)
    meter = NvmlMeter([0, 1])
    before = meter.read()
    fake_gpus.advance(0.3)
    spent = meter.read() - before
    assert spent.energy_j == pytest.approx(600 * 0.3, abs=0.002)
    meter.close()


def test_only_old_gpus_need_a_thread_and_close_ends_it(fake_gpus: FakeDriver) -> None:
    new = NvmlMeter([0])
    assert not sampling_threads()
    make_old(fake_gpus, 0)
    old = NvmlMeter([0])
    assert len(sampling_threads()) == 1
    assert sampling_threads()[0].daemon
    old.close()
    assert not sampling_threads()
    new.close()


def test_an_error_in_the_thread_is_raised_by_every_later_reading(fake_gpus: FakeDriver) -> None:
    make_old(fake_gpus, 0)
    gpu = fake_gpus.gpus[0]
    meter = NvmlMeter([0], sample_interval_s=0.01)
    meter.read()
    gpu.fail("power", pynvml.NVML_ERROR_GPU_IS_LOST)
    for thread in sampling_threads():
        thread.join(LIMIT_S)
    gpu.fail("power", 0)  # samples are missing, so the meter cannot continue
    for _ in range(2):
        with pytest.raises(ZeusMeterError, match=f"cannot read the power of {gpu.uuid}.*is lost"):
            meter.read()
    meter.close()


def test_closing_one_meter_again_leaves_the_others_alone(fake_gpus: FakeDriver) -> None:
    one, other = NvmlMeter([0]), NvmlMeter([0])
    one.close()
    one.close()
    other.read()
    other.close()


# Other processes


def test_reading_a_meter_opened_before_a_fork_is_an_error(fake_gpus: FakeDriver) -> None:
    make_old(fake_gpus, 0)
    meter = NvmlMeter([0])
    with pytest.raises(ZeusMeterError, match="open the meter after the fork"):
        in_forked_child(meter.read)
    meter.read()
    meter.close()


# Errors


def lacks(*kinds: str) -> Callable[[FakeDriver], None]:
    """Let GPU 0 not support calls of some kinds."""

    def change(driver: FakeDriver) -> None:
        for kind in kinds:
            driver.gpus[0].fail(kind, pynvml.NVML_ERROR_NOT_SUPPORTED)

    return change


@pytest.mark.parametrize(
    ("gpus", "change", "message"),
    [
        ([0], lacks("energy", "power"), r"power of GPU-.* Not Supported; .*meter="),
        (
            [0],
            lacks("constraints", "enforced", "default_limit"),
            r"power limit of GPU-.* Not Supported; .*meter=",
        ),
        ([7], lacks(), "cannot find GPU 7: .*nvidia-smi -L"),
        (["GPU-elsewhere"], lacks(), "cannot find GPU GPU-elsewhere: .*nvidia-smi -L"),
        (
            [0],
            lambda driver: driver.fail_init(pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
            r"Driver Not Loaded; install or load .*`nvidia-smi`",
        ),
    ],
)
def test_gpus_that_cannot_be_counted_are_an_error_with_a_remedy(
    fake_gpus: FakeDriver,
    gpus: list[int | str],
    change: Callable[[FakeDriver], None],
    message: str,
) -> None:
    change(fake_gpus)
    with pytest.raises(ZeusMeterError, match=message):
        NvmlMeter(gpus)


def test_a_gpu_named_twice_is_refused(fake_gpus: FakeDriver) -> None:
    with pytest.raises(ZeusConfigError, match="named twice"):
        NvmlMeter([1, fake_gpus.gpus[1].uuid])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda driver: driver.gpus[0].fail("energy", pynvml.NVML_ERROR_GPU_IS_LOST),
            "GPU-00000000-.* GPU is lost; .*reset",
        ),
        (
            lambda driver: driver.gpus[0].fail("energy", pynvml.NVML_ERROR_NO_PERMISSION),
            "GPU-00000000-.* Insufficient Permissions; .*/dev/nvidia",
        ),
        (lambda driver: driver.gpus[0].reset_counter(), "GPU-00000000-.* the GPU was reset"),
        (FakeDriver.unload, "Uninitialized; the driver was unloaded"),
    ],
)
def test_a_reading_that_fails_during_training_names_the_gpu_and_a_remedy(
    fake_gpus: FakeDriver, change: Callable[[FakeDriver], None], message: str
) -> None:
    meter = NvmlMeter([0])
    change(fake_gpus)
    with pytest.raises(ZeusMeterError, match=message):
        meter.read()
    meter.close()
