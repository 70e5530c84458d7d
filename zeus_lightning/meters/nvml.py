"""The energy of NVIDIA GPUs, through NVML."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pynvml

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters.protocol import Reading
from zeus_lightning.meters.sampler import Sampler

if TYPE_CHECKING:
    import torch

_NO_SUCH_FUNCTION = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
_NO_DRIVER = (
    "install or load the NVIDIA driver (`nvidia-smi` must work; a container needs `--gpus all`); "
    'without an NVIDIA GPU, ZeusBSOCallback measures with meter="rapl" or "cpu-estimate"'
)
_NO_SUCH_GPU = "`nvidia-smi -L` lists the GPUs; for a MIG slice name its GPU, as in meter='nvml:0'"
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
    """Return NVML's handle of a GPU: its NVML index, which is that of `nvidia-smi`, or its UUID."""
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


class NvmlMeter:
    """Counts the energy of NVIDIA GPUs; an `EnergyMeter`.

    Volta and newer GPUs count their energy, in millijoules, refreshed every 20 to 100 ms
    (`nvmlDeviceGetTotalEnergyConsumption`): measurements shorter than a second are inexact. The
    power of older GPUs is sampled in a background thread and integrated.

    Args:
        gpus: The GPUs to count, by NVML index or UUID. NVML's indices ignore
            `CUDA_VISIBLE_DEVICES`.
        device: CUDA device to synchronize before each reading, so that the work submitted to it is
            counted. Errors of that work are raised as torch raises them.
        sample_interval_s: Seconds between two samples of power.

    Attributes:
        samples: Whether the power of a GPU without an energy counter is sampled.

    Raises:
        ZeusConfigError: No GPU is named, or one is named twice.
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
        self._closed = False
        with ExitStack() as close_on_error:
            with _explained("start NVML"):
                pynvml.nvmlInit()
            close_on_error.callback(shut_down)
            opened = [_Gpu(gpu) for gpu in gpus]
            if len({gpu.uuid for gpu in opened}) < len(opened):
                raise ZeusConfigError(f"a GPU is named twice in {list(gpus)}: name each once")
            self.devices: tuple[str, ...] = tuple(gpu.uuid for gpu in opened)
            self.device_model: str = " + ".join(dict.fromkeys(gpu.model for gpu in opened))
            self.max_power_w: float = sum(gpu.max_power_w() for gpu in opened)
            self._counting = [gpu for gpu in opened if gpu.counts_energy]
            sampled = [gpu for gpu in opened if not gpu.counts_energy]
            self.samples = bool(sampled)
            if sampled:
                self._sampler = Sampler(
                    lambda: sum(gpu.energy_j() for gpu in sampled),
                    sample_interval_s,
                    "zeus-nvml-power",
                )
                close_on_error.callback(self._sampler.stop)
            self._opened = close_on_error.pop_all()

    def read(self) -> Reading:
        """Return the energy of the GPUs since the meter was opened, including work on `device`."""
        if self._closed:
            raise ZeusMeterError(f"the nvml meter of {', '.join(self.devices)} is closed")
        if self._device is not None:
            import torch

            torch.cuda.synchronize(self._device)
        energy_j = sum(gpu.energy_j() for gpu in self._counting)
        if self._sampler is not None:
            energy_j += self._sampler.read()
        return Reading(energy_j, time.monotonic())

    def counters_mj(self) -> tuple[int, ...]:
        """Return what the energy counters show now, of the GPUs that have one."""
        with _explained(f"read the energy of {', '.join(self.devices)}"):
            return tuple(gpu.counter_mj() for gpu in self._counting)

    def close(self) -> None:
        """Stop sampling, and release NVML."""
        self._closed = True
        self._opened.close()


class PowerIntegral:
    """Energy from samples of power at uneven times, by the trapezoidal rule."""

    def __init__(self) -> None:
        self.energy_j = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, power_w: float, time_s: float) -> None:
        """Add a sample taken at `time_s`, no earlier than the previous one."""
        if self._last is not None:
            last_power_w, last_time_s = self._last
            self.energy_j += (last_power_w + power_w) / 2 * (time_s - last_time_s)
        self._last = power_w, time_s


class _Gpu:
    """A GPU, and its energy since this object was created: counted by the GPU, or sampled here."""

    def __init__(self, gpu: int | str) -> None:
        with _explained(f"find GPU {gpu}"):
            self._handle = find_gpu(gpu)
            self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)
            self.model: str = pynvml.nvmlDeviceGetName(self._handle)
        self.counts_energy = False
        self._integral = PowerIntegral()
        with _explained(f"read the energy of {self}"), suppress(*_NO_SUCH_FUNCTION):
            self._first_mj = self._last_mj = self.counter_mj()
            self.counts_energy = True

    def __str__(self) -> str:
        return f"{self.uuid} ({self.model})"

    def max_power_w(self) -> float:
        """Return the highest settable power limit, or the limit in force if none can be set."""
        with _explained(f"read the power limit of {self}"):
            with suppress(*_NO_SUCH_FUNCTION):
                limits_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
                return float(limits_mw[1]) / 1e3
            with suppress(*_NO_SUCH_FUNCTION):
                return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3
            return float(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle)) / 1e3

    def energy_j(self) -> float:
        if not self.counts_energy:
            with _explained(f"read the power of {self}"):
                power_w = pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3
            self._integral.add(power_w, time.monotonic())
            return self._integral.energy_j
        with _explained(f"read the energy of {self}"):
            energy_mj = self.counter_mj()
        if energy_mj < self._last_mj:
            raise ZeusMeterError(
                f"the energy counter of {self} fell from {self._last_mj} to {energy_mj} mJ: "
                "the GPU was reset during the run; start the run again"
            )
        self._last_mj = energy_mj
        return (energy_mj - self._first_mj) / 1e3

    def counter_mj(self) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Raise NVML's errors with what failed and a remedy."""
    try:
        yield
    except pynvml.NVMLError as error:
        remedy = _REMEDIES.get(error.value, "see whether `nvidia-smi` works on this host")
        raise ZeusMeterError(f"cannot {doing}: {error}; {remedy}") from error
