"""The NVML meter's errors, on the fake driver."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import FakeDriver

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters.nvml import NvmlMeter


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost; .*reset"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions; .*/dev/nvidia"),
    ],
)
def test_a_reading_that_fails_during_training_names_the_gpu_and_a_remedy(
    fake_gpus: FakeDriver, error: int, message: str
) -> None:
    gpu = fake_gpus.gpus[0]
    meter = NvmlMeter([0])
    gpu.fail("energy", error)
    with pytest.raises(ZeusMeterError, match=f"{gpu.uuid} .*{message}"):
        meter.read()
    meter.close()


def test_a_driver_that_is_unloaded_is_an_error(fake_gpus: FakeDriver) -> None:
    meter = NvmlMeter([0])
    fake_gpus.unload()
    with pytest.raises(ZeusMeterError, match="Uninitialized; the driver was unloaded"):
        meter.read()
    meter.close()


def test_a_counter_that_falls_is_an_error(fake_gpus: FakeDriver) -> None:
    meter = NvmlMeter([0])
    fake_gpus.gpus[0].reset_counter()
    with pytest.raises(ZeusMeterError, match=f"{fake_gpus.gpus[0].uuid}.* the GPU was reset"):
        meter.read()
    meter.close()


def test_a_gpu_that_reports_neither_energy_nor_power_cannot_be_counted(
    fake_gpus: FakeDriver,
) -> None:
    fake_gpus.gpus[0].fail("energy", pynvml.NVML_ERROR_NOT_SUPPORTED)
    fake_gpus.gpus[0].fail("power", pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(ZeusMeterError, match=r"power of GPU-.* Not Supported; .*meter="):
        NvmlMeter([0])


def test_a_gpu_without_any_power_limit_cannot_be_counted(fake_gpus: FakeDriver) -> None:
    for kind in ("constraints", "enforced", "default_limit"):
        fake_gpus.gpus[0].fail(kind, pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(ZeusMeterError, match=r"power limit of GPU-.* Not Supported; .*meter="):
        NvmlMeter([0])


@pytest.mark.parametrize("gpu", [7, "GPU-of-another-host"])
def test_a_gpu_that_is_not_there_is_named(fake_gpus: FakeDriver, gpu: int | str) -> None:
    with pytest.raises(ZeusMeterError, match=f"cannot find GPU {gpu}: .*nvidia-smi -L"):
        NvmlMeter([gpu])


def test_a_gpu_named_twice_is_refused(fake_gpus: FakeDriver) -> None:
    with pytest.raises(ZeusConfigError, match="named twice"):
        NvmlMeter([1, fake_gpus.gpus[1].uuid])


def test_a_driver_that_is_not_loaded_is_an_error(fake_gpus: FakeDriver) -> None:
    fake_gpus.fail_init(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(ZeusMeterError, match=r"Driver Not Loaded; install or load .*`nvidia-smi`"):
        NvmlMeter([0])
