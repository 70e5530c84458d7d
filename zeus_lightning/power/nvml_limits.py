"""The power limit of an NVIDIA GPU, read through NVML, and set through that or Zeus's daemon."""

from __future__ import annotations

from contextlib import ExitStack

import pynvml

from zeus_lightning.meters.nvml import find_gpu, shut_down
from zeus_lightning.power.limits import GpuLimit

_NEEDED = (
    "setting power limits needs root or the capability CAP_SYS_ADMIN: run as root, in a container "
    "with `--cap-add SYS_ADMIN`; or let an administrator run zeusd, and set ZEUSD_SOCK_PATH; or "
    'pass on_no_permission="observe" to train without setting limits'
)
_NOT_CONTROLLED = (
    "its power cannot be controlled, as under MIG and on some laptops and virtual machines"
)
_CAUSES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: ("no_permission", _NEEDED),
    pynvml.NVML_ERROR_NOT_SUPPORTED: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("gpu_lost", "see `dmesg`, and reset it or restart the host"),
}


class NvmlLimit(GpuLimit):
    """The power limit of one NVIDIA GPU, which is named by its UUID or NVML index."""

    def _find(self, gpu: int | str, closing: ExitStack) -> None:
        pynvml.nvmlInit()
        closing.callback(shut_down)
        self._handle = find_gpu(gpu)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())

    def _range_mw(self) -> tuple[int, int]:
        lowest, highest = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        return int(lowest), int(highest)

    def _limit_mw(self) -> int:
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def _set_mw(self, limit_mw: int) -> None:
        pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)

    def _energy_mj(self) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def _explain(self, error: Exception) -> tuple[str, str, str] | None:
        if not isinstance(error, pynvml.NVMLError):
            return None
        works = "see whether `nvidia-smi` works here"
        return (str(error), *_CAUSES.get(error.value, ("driver", works)))
