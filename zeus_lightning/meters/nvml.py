"""The energy of NVIDIA GPUs, through NVML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pynvml

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters.gpu import Gpu, GpuMeter

_NO_SUCH_FUNCTION = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
_NO_DRIVER = (
    "install or load the NVIDIA driver (`nvidia-smi` must work; a container needs `--gpus all`); "
    'without an NVIDIA GPU, ZeusBSOCallback measures with meter="rapl" or "cpu-estimate"'
)
_NO_SUCH_GPU = (
    "name one that `nvidia-smi -L` lists, as in meter='nvml:0'; for a MIG slice, name its GPU"
)
_GPU_FAILED = "see `dmesg`, then reset the GPU with `nvidia-smi --gpu-reset` or restart the host"
_NO_DRIVER_ERRORS = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_REMEDIES = {
    **dict.fromkeys(_NO_DRIVER_ERRORS, _NO_DRIVER),
    pynvml.NVML_ERROR_UNINITIALIZED: "the driver went away or NVML was shut down: restart the run",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated during the run: restart the host"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "let this user read and write /dev/nvidia*, or run as root",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_NOT_FOUND: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_NOT_SUPPORTED: 'choose meter="rapl" or another GPU',
    pynvml.NVML_ERROR_GPU_IS_LOST: _GPU_FAILED,
    pynvml.NVML_ERROR_RESET_REQUIRED: _GPU_FAILED,
}


def find_gpu(gpu: int | str) -> Any:
    """Return NVML's handle of a GPU, by NVML index, as `nvidia-smi` counts, or UUID."""
    if isinstance(gpu, int):
        return pynvml.nvmlDeviceGetHandleByIndex(gpu)
    return pynvml.nvmlDeviceGetHandleByUUID(gpu)


def shut_down() -> None:
    """Undo one call of `nvmlInit`."""
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def finds_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU; also true of one that does not work."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return error.value not in _NO_DRIVER_ERRORS
    try:
        return bool(pynvml.nvmlDeviceGetCount() > 0)
    except pynvml.NVMLError:
        return True
    finally:
        shut_down()


class NvmlMeter(GpuMeter):
    """Counts the energy of NVIDIA GPUs; an `EnergyMeter`.

    Volta and newer GPUs count their energy, in millijoules, refreshed every 20 to 100 ms
    (`nvmlDeviceGetTotalEnergyConsumption`): measurements shorter than a second are inexact. GPUs
    are named by NVML index, which ignores `CUDA_VISIBLE_DEVICES`, or UUID.
    """

    name: str = "nvml"

    def _open(self, gpus: Sequence[int | str], closing: ExitStack) -> list[Gpu]:
        with _explained("start NVML"):
            pynvml.nvmlInit()
        closing.callback(shut_down)
        return [_NvidiaGpu(gpu) for gpu in gpus]


class _NvidiaGpu(Gpu):
    def __init__(self, gpu: int | str) -> None:
        with _explained(f"find GPU {gpu}"):
            self._handle = find_gpu(gpu)
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

    def power_limits_w(self) -> tuple[float, float] | None:
        with _explained(f"read the power limit of {self}"), suppress(*_NO_SUCH_FUNCTION):
            current_mw = pynvml.nvmlDeviceGetPowerManagementLimit(self._handle)
            default_mw = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle)
            return float(current_mw) / 1e3, float(default_mw) / 1e3
        return None


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Raise NVML's errors with what failed and a remedy."""
    try:
        yield
    except pynvml.NVMLError as error:
        remedy = _REMEDIES.get(error.value, "see whether `nvidia-smi` works on this host")
        cause = "gpu_lost" if error.value == pynvml.NVML_ERROR_GPU_IS_LOST else "driver"
        raise ZeusMeterError(f"cannot {doing}: {error}; {remedy}", {"cause": cause}) from error
