"""NVIDIA GPUs' energy and power limits, by NVML.

What they share with AMD's, which amd.py has, is in `Gpu` and `GpuMeter`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from statistics import fmean
from typing import TYPE_CHECKING

import pynvml

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import Reading
from zeus_lightning.meters.rapl import Sampler

if TYPE_CHECKING:
    import torch

_STILL_S = 5.0  # counters are refreshed at least ten times a second
_NO_FIGURES = 'the driver does not measure this GPU; use meter="cpu-estimate"'

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


class Gpu(ABC):
    """A GPU by its driver: a meter counts its energy, `GpuLimit` sets its power limit.

    Args:
        uuid: A name that is unique on the host.
        model: Its model.

    Raises:
        ZeusMeterError: The GPU cannot be read or set. The methods also raise it. An error of the
            driver has `fields["cause"]`: `no_permission`, `no_power_control`, `gpu_lost` or
            `driver`.
    """

    counts_energy: bool

    def __init__(self, uuid: str, model: str) -> None:
        self.uuid, self.model = uuid, model

    def __str__(self) -> str:
        return f"{self.uuid} ({self.model})"

    @abstractmethod
    def counter_mj(self) -> int | None:
        """Return the energy counter in millijoules; None if the GPU has none."""

    @abstractmethod
    def power_w(self) -> float:
        """Return the power that the GPU draws."""

    @abstractmethod
    def works(self) -> bool:
        """Return whether the GPU is in use; also if that is unknown."""

    @abstractmethod
    def max_power_w(self) -> float:
        """Return the highest settable power limit, or the current limit if none can be set."""

    @abstractmethod
    def range_mw(self) -> tuple[int, int]:
        """Return the lowest and the highest settable power limit."""

    @abstractmethod
    def limit_mw(self) -> int:
        """Return the current power limit."""

    @abstractmethod
    def default_limit_mw(self) -> int:
        """Return the GPU's default power limit."""

    @abstractmethod
    def set_limit_mw(self, limit_mw: int) -> None:
        """Set the power limit."""

    def start_counting(self) -> None:
        """Count the energy from now on, or sample the power of a GPU without a counter."""
        self._sampled_j = 0.0
        self._sample: tuple[float, float] | None = None  # the last one: power and time
        first_mj = self.counter_mj()
        self.counts_energy = first_mj is not None
        self._first_mj = self._last_mj = first_mj or 0
        self._moved_s = time.monotonic()

    def energy_j(self) -> float:
        """Return the joules since `start_counting`; samples the power without a counter."""
        if not self.counts_energy:
            power_w = self.power_w()
            if power_w == 0 and self.works():
                raise ZeusMeterError(f"{self} reports a power of 0 W under load: {_NO_FIGURES}")
            now_s = time.monotonic()
            if self._sample is not None:
                last_power_w, last_s = self._sample
                self._sampled_j += (last_power_w + power_w) / 2 * (now_s - last_s)  # trapezoids
            self._sample = power_w, now_s
            return self._sampled_j
        energy_mj = self.counter_mj() or 0
        if energy_mj < self._last_mj:
            raise ZeusMeterError(
                f"the energy counter of {self} fell from {self._last_mj} to {energy_mj} mJ: "
                "the GPU was reset during the run; restart the run"
            )
        now_s = time.monotonic()
        if energy_mj > self._last_mj:
            self._moved_s = now_s
        elif now_s - self._moved_s > _STILL_S and self.works():
            raise ZeusMeterError(
                f"the energy counter of {self} stayed at {energy_mj} mJ for "
                f"{now_s - self._moved_s:.0f} s under load: {_NO_FIGURES}"
            )
        self._last_mj = energy_mj
        return (energy_mj - self._first_mj) / 1e3


class GpuMeter(ABC):
    """Counts the energy of GPUs; an `EnergyMeter`. The power of GPUs without a counter is sampled.

    A GPU that measures neither energy nor power is an error, and so is a counter that stands
    still, or a power of zero, while the GPU works.

    Args:
        gpus: The GPUs to count, at least one.
        device: CUDA device to synchronize before each reading, so that the work submitted to it is
            counted. Errors of that work are raised as torch raises them.
        sample_interval_s: Seconds between two samples of power.

    Attributes:
        samples: Whether the power of a GPU without an energy counter is sampled.

    Raises:
        ZeusConfigError: A GPU is named twice.
        ZeusMeterError: There is no driver or no such GPU, or it cannot be read.
    """

    name: str
    is_estimate: bool = False

    def __init__(
        self,
        gpus: Sequence[int | str],
        *,
        device: torch.device | None = None,
        sample_interval_s: float = 0.05,
    ) -> None:
        self._device = device
        self._sampler: Sampler | None = None
        with ExitStack() as close_on_error:
            opened = self._open(gpus, close_on_error)
            if len({gpu.uuid for gpu in opened}) < len(opened):
                raise ZeusConfigError(f"a GPU is named twice in {list(gpus)}; name each GPU once")
            self.devices: tuple[str, ...] = tuple(gpu.uuid for gpu in opened)
            self.device_model: str = " + ".join(dict.fromkeys(gpu.model for gpu in opened))
            self.max_power_w: float = sum(gpu.max_power_w() for gpu in opened)
            self._gpus = opened
            for gpu in opened:
                gpu.start_counting()
            self._counting = [gpu for gpu in opened if gpu.counts_energy]
            sampled = [gpu for gpu in opened if not gpu.counts_energy]
            self.samples = bool(sampled)
            if sampled:
                self._sampler = Sampler(
                    lambda: sum(gpu.energy_j() for gpu in sampled),
                    sample_interval_s,
                    f"zeus-{self.name}-power",
                )
                close_on_error.callback(self._sampler.stop)
            self._opened = close_on_error.pop_all()

    @abstractmethod
    def _open(self, gpus: Sequence[int | str], closing: ExitStack) -> list[Gpu]:
        """Start the driver's library, whose end `closing` gets, and open the GPUs."""

    def read(self) -> Reading:
        """Return the energy of the GPUs since the meter was opened, including work on `device`."""
        if self._device is not None:
            import torch

            torch.cuda.synchronize(self._device)
        energy_j = sum(gpu.energy_j() for gpu in self._counting)
        if self._sampler is not None:
            energy_j += self._sampler.read()
        return Reading(energy_j, time.monotonic())

    def power_limits_w(self) -> tuple[float, float] | None:
        """Return the current power limit and the default one, as means over the GPUs.

        None if a GPU has none, or if they cannot be read.
        """
        try:
            limits_mw = [gpu.limit_mw() for gpu in self._gpus]
            defaults_mw = [gpu.default_limit_mw() for gpu in self._gpus]
        except ZeusMeterError:
            return None
        if min(limits_mw + defaults_mw) <= 0:
            return None
        return fmean(limits_mw) / 1e3, fmean(defaults_mw) / 1e3

    def close(self) -> None:
        """Stop sampling, and release the driver's library."""
        self._opened.close()


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
