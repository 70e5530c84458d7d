"""NVIDIA GPUs' energy and power limits, by NVML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pynvml

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters.gpu import Gpu, GpuMeter

_NO_SUCH_FUNCTION = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
_NO_DRIVER = (
    "install or load the NVIDIA driver, so that `nvidia-smi` works (containers need `--gpus all`)"
)
_NO_SUCH_GPU = (
    "name one that `nvidia-smi -L` lists (for a MIG slice, its GPU), as in meter='nvml:0'"
)
_NOT_SUPPORTED = 'MIG slices and some virtual GPUs do not report it; use meter="cpu-estimate"'
_NO_LIMIT = "MIG slices and some laptops have none"
_TO_READ = "give this user read and write access to /dev/nvidia*"
_TO_SET = "run as root or with CAP_SYS_ADMIN, or use zeusd"
_GPU_FAILED = "reset the GPU with `nvidia-smi --gpu-reset`, or restart the host"
_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: _NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: _NO_DRIVER,
    pynvml.NVML_ERROR_UNINITIALIZED: (
        "the driver was unloaded or NVML was shut down: restart the run"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated but not reloaded: restart the host"
    ),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_NOT_FOUND: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_GPU_IS_LOST: _GPU_FAILED,
    pynvml.NVML_ERROR_RESET_REQUIRED: _GPU_FAILED,
}
_CAUSES = {
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "no_power_control",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "no_power_control",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
}
"""All others are `driver`."""


def open_gpu(gpu: int | str, closing: ExitStack) -> Gpu:
    """Return a GPU by NVML index, as `nvidia-smi` counts, or UUID; `closing` gets NVML's end."""
    with _explained("start NVML"):
        pynvml.nvmlInit()
    closing.callback(_shut_down)
    return _NvidiaGpu(gpu)


def _shut_down() -> None:
    """Undo one call of `nvmlInit`."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


class NvmlMeter(GpuMeter):
    """Counts the energy of NVIDIA GPUs; an `EnergyMeter`.

    Volta and newer GPUs count their energy, in millijoules, refreshed every 20 to 100 ms
    (`nvmlDeviceGetTotalEnergyConsumption`): measurements shorter than a second are inexact. GPUs
    are named by NVML index, which ignores `CUDA_VISIBLE_DEVICES`, or UUID.
    """

    name: str = "nvml"

    def _open(self, gpus: Sequence[int | str], closing: ExitStack) -> list[Gpu]:
        return [open_gpu(gpu, closing) for gpu in gpus]


class _NvidiaGpu(Gpu):
    def __init__(self, gpu: int | str) -> None:
        with _explained(f"find GPU {gpu}"):
            by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
            self._handle = by_index(gpu) if isinstance(gpu, int) else by_uuid(gpu)
            uuid = pynvml.nvmlDeviceGetUUID(self._handle)
            model = pynvml.nvmlDeviceGetName(self._handle)
        super().__init__(uuid, model)

    def counter_mj(self) -> int | None:
        with _explained(f"read the energy of {self}"), suppress(*_NO_SUCH_FUNCTION):
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None

    def power_w(self) -> float:
        with _explained(f"read the power of {self}"):
            return float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3

    def works(self) -> bool:
        try:
            return bool(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu > 0)
        except pynvml.NVMLError:  # as in a MIG slice
            return True

    def max_power_w(self) -> float:
        with _explained(f"read the power limit of {self}"):
            with suppress(*_NO_SUCH_FUNCTION):
                limits_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
                return float(limits_mw[1]) / 1e3
            with suppress(*_NO_SUCH_FUNCTION):
                return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3
            return float(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle)) / 1e3

    def range_mw(self) -> tuple[int, int]:
        with _explained(f"read the power limits of {self}", not_supported=_NO_LIMIT):
            lowest, highest = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
            return int(lowest), int(highest)

    def limit_mw(self) -> int:
        with _explained(f"read the power limit of {self}", not_supported=_NO_LIMIT):
            return int(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def default_limit_mw(self) -> int:
        with _explained(f"read the default power limit of {self}", not_supported=_NO_LIMIT):
            return int(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle))

    def set_limit_mw(self, limit_mw: int) -> None:
        doing = f"set a limit of {limit_mw / 1000:g} W on {self}"
        with _explained(doing, permission=_TO_SET, not_supported=_NO_LIMIT):
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)


@contextmanager
def _explained(
    doing: str, *, permission: str = _TO_READ, not_supported: str = _NOT_SUPPORTED
) -> Iterator[None]:
    """Raise NVML's errors with what failed and a remedy."""
    try:
        yield
    except pynvml.NVMLError as error:
        remedy = _REMEDIES.get(error.value, "check that `nvidia-smi` works on this host")
        cause = _CAUSES.get(error.value, "driver")
        if cause == "no_permission":
            remedy = permission
        elif cause == "no_power_control":
            remedy = not_supported
        raise ZeusMeterError(f"cannot {doing}: {error}; {remedy}", {"cause": cause}) from error
