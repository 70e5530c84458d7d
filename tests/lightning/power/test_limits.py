"""A GPU's power limit through the real nvidia-ml-py, on the fake driver."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import FakeDriver

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.limits import GpuLimit

TO_SET = "root or with CAP_SYS_ADMIN, or use zeusd$"
NO_LIMIT = "MIG slices and some laptops have none$"


def test_it_has_the_gpus_names_and_the_whole_watts_that_can_be_set(fake_gpus: FakeDriver) -> None:
    gpu = fake_gpus.add_gpu(min_w=99.2, max_w=432.9)
    for name in (gpu.uuid, 2):
        limit = GpuLimit(name)
        assert limit.uuid == gpu.uuid
        assert (limit.min_w, limit.max_w) == (100, 432)
        limit.close()


@pytest.mark.parametrize(
    ("kind", "code", "cause", "text"),
    [
        (
            "set_limit",
            pynvml.NVML_ERROR_NO_PERMISSION,
            "no_permission",
            TO_SET,
        ),
        ("set_limit", pynvml.NVML_ERROR_NOT_SUPPORTED, "no_power_control", NO_LIMIT),
        ("constraints", pynvml.NVML_ERROR_NOT_SUPPORTED, "no_power_control", NO_LIMIT),
        ("limit", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "no_power_control", NO_LIMIT),
        ("limit", pynvml.NVML_ERROR_GPU_IS_LOST, "gpu_lost", "reset the GPU"),
        ("find", pynvml.NVML_ERROR_UNKNOWN, "driver", "nvidia-smi"),
    ],
)
def test_an_nvml_error_names_the_gpu_the_cause_and_a_remedy(
    fake_gpus: FakeDriver, kind: str, code: int, cause: str, text: str
) -> None:
    uuid = fake_gpus.gpus[0].uuid
    fake_gpus.gpus[0].fail(kind, code)
    with pytest.raises(ZeusPowerError, match=text) as raised:  # noqa: PT012 - either may raise
        limit = GpuLimit(uuid)
        try:
            limit.check_permission()
        finally:
            limit.close()
    assert raised.value.fields == {"cause": cause}
    assert uuid in raised.value.message


def test_nvml_is_released_by_close_and_when_opening_fails(fake_gpus: FakeDriver) -> None:
    GpuLimit(0).close()
    fake_gpus.gpus[0].lose()
    with pytest.raises(ZeusPowerError):
        GpuLimit(0)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
