"""The energy of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pynvml

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters.protocol import Reading
from zeus_lightning.meters.sampler import Sampler

if TYPE_CHECKING:
    import torch

_NO_SUCH_FUNCTION = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)

_NO_DRIVER = (
    "install or load the NVIDIA driver (`nvidia-smi` must work; a container needs `--gpus all`); "
    'without an NVIDIA GPU, ZeusBSOCallback measures with meter="rapl" or "cpu-estimate", and '
    "ZeusPowerLimitCallback has no limit to set"
)
_NO_SUCH_GPU = "`nvidia-smi -L` lists the GPUs; for a MIG slice name its GPU, as in meter='nvml:0'"
_GPU_FAILED = "see `dmesg`, then reset the GPU with `nvidia-smi --gpu-reset` or restart the host"
_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: _NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: _NO_DRIVER,
    pynvml.NVML_ERROR_UNINITIALIZED: "the driver went away or NVML was shut down: restart the run",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated under way: restart the host",
    pynvml.NVML_ERROR_NO_PERMISSION: "let this user read and write /dev/nvidia*, or run as root",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_NOT_FOUND: _NO_SUCH_GPU,
    pynvml.NVML_ERROR_NOT_SUPPORTED: 'this GPU does not tell; choose meter="rapl" or another GPU',
    pynvml.NVML_ERROR_GPU_IS_LOST: _GPU_FAILED,
    pynvml.NVML_ERROR_RESET_REQUIRED: _GPU_FAILED,
}


class NvmlMeter:
    """Counts the energy of NVIDIA GPUs; an `EnergyMeter`.

    Volta and newer GPUs count their energy themselves, in millijoules, refreshed every 20 to 100 ms
    (`nvmlDeviceGetTotalEnergyConsumption`): windows shorter than a second are inexact. Of older
    GPUs, power is sampled in a background thread and integrated.

    Args:
        gpus: NVML indices or UUIDs of the GPUs to count. NVML's indices are those of `nvidia-smi`,
            not those behind `CUDA_VISIBLE_DEVICES`.
        device: CUDA device to synchronize before each reading, so that the work handed to it is
            counted; None: none. An error of that work is raised as torch raises it.
        sample_interval_s: Seconds between two samples of power.

    Raises:
        ZeusConfigError: No GPU is named, or one twice.
        ZeusMeterError: There is no driver or no such GPU, or it cannot be read.
    """

    name: str = "nvml"
    is_estimate: bool = False

    def __init__(
        self,
        gpus: Sequence[int | str],
        *,
        device: torch.device | None = None,
        sample_interval_s: float = 0.05,
    ) -> None:
        if not gpus:
            raise ZeusConfigError('no GPU to count: name some, as in meter="nvml:0"')
        self._device = device
        self._sampler: Sampler | None = None
        with _explained("start NVML"):
            pynvml.nvmlInit()
        self._closed = False
        try:
            opened = _open_gpus(gpus)
            self.devices: tuple[str, ...] = tuple(gpu.uuid for gpu in opened)
            self.device_model: str = " + ".join(dict.fromkeys(gpu.model for gpu in opened))
            self.max_power_w: float = sum(gpu.max_power_w() for gpu in opened)
            counting = [gpu for gpu in opened if gpu.counts_energy()]
            self._counters = [_EnergyCounter(gpu) for gpu in counting]
            sampled = [_SampledPower(gpu) for gpu in opened if gpu not in counting]
            if sampled:
                self._sampler = Sampler(
                    lambda: sum(gpu.energy_j() for gpu in sampled),
                    sample_interval_s,
                    name="zeus-nvml-power",
                )
        except BaseException:
            self.close()
            raise

    def read(self) -> Reading:
        """Energy of the GPUs since the meter was opened, the work handed to `device` included.

        Raises:
            ZeusMeterError: A GPU cannot be read, or the meter is closed.
        """
        if self._closed:
            raise ZeusMeterError(f"the nvml meter of {', '.join(self.devices)} is closed")
        if self._device is not None:
            import torch

            torch.cuda.synchronize(self._device)
        energy_j = sum(counter.energy_j() for counter in self._counters)
        if self._sampler is not None:
            energy_j += self._sampler.read()
        return Reading(energy_j, time.monotonic())

    def close(self) -> None:
        """Stop sampling and give NVML back."""
        if self._closed:
            return
        self._closed = True
        if self._sampler is not None:
            self._sampler.stop()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class PowerIntegral:
    """Energy from samples of power at uneven times, by the trapezoidal rule."""

    def __init__(self) -> None:
        self.energy_j = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, power_w: float, time_s: float) -> None:
        """Add a sample taken at `time_s`, not earlier than the one before."""
        if self._last is not None:
            last_power_w, last_time_s = self._last
            self.energy_j += (last_power_w + power_w) / 2 * (time_s - last_time_s)
        self._last = power_w, time_s


class _Gpu:
    """A GPU as NVML knows it, found by its index or UUID."""

    def __init__(self, gpu: int | str) -> None:
        with _explained(f"find GPU {gpu}"):
            if isinstance(gpu, int):
                self.handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            else:
                self.handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
            self.uuid: str = pynvml.nvmlDeviceGetUUID(self.handle)
            self.model: str = pynvml.nvmlDeviceGetName(self.handle)

    def __str__(self) -> str:
        return f"{self.uuid} ({self.model})"

    def counts_energy(self) -> bool:
        """Whether the GPU counts its energy itself: Volta and newer do."""
        with _explained(f"read the energy of {self}"):
            try:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
            except _NO_SUCH_FUNCTION:
                return False
            return True

    def max_power_w(self) -> float:
        """Highest settable power limit, or the limit in force where none can be set."""
        with _explained(f"read the power limit of {self}"):
            with suppress(*_NO_SUCH_FUNCTION):
                return (
                    float(pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self.handle)[1]) / 1e3
                )
            with suppress(*_NO_SUCH_FUNCTION):
                return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle)) / 1e3
            return float(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self.handle)) / 1e3


class _EnergyCounter:
    """A GPU's own count of its energy, from now on."""

    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu
        self._first_mj = self._last_mj = self._read_mj()

    def energy_j(self) -> float:
        energy_mj = self._read_mj()
        if energy_mj < self._last_mj:
            raise ZeusMeterError(
                f"the energy counter of {self._gpu} fell from {self._last_mj} to {energy_mj} mJ: "
                "the GPU was reset in mid-run; start the run again"
            )
        self._last_mj = energy_mj
        return (energy_mj - self._first_mj) / 1e3

    def _read_mj(self) -> int:
        with _explained(f"read the energy of {self._gpu}"):
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu.handle))


class _SampledPower:
    """The energy of a GPU that tells only its power."""

    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu
        self._integral = PowerIntegral()

    def energy_j(self) -> float:
        with _explained(f"read the power of {self._gpu}"):
            power_w = pynvml.nvmlDeviceGetPowerUsage(self._gpu.handle) / 1e3
        self._integral.add(power_w, time.monotonic())
        return self._integral.energy_j


def _open_gpus(gpus: Sequence[int | str]) -> list[_Gpu]:
    opened = [_Gpu(gpu) for gpu in gpus]
    if len({gpu.uuid for gpu in opened}) < len(opened):
        raise ZeusConfigError(f"a GPU is named twice in {list(gpus)}: name each once")
    return opened


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Turn NVML's errors into ones that say what failed and what to do."""
    try:
        yield
    except pynvml.NVMLError as error:
        remedy = _REMEDIES.get(error.value, "see whether `nvidia-smi` works on this host")
        raise ZeusMeterError(f"cannot {doing}: {error}; {remedy}") from error
