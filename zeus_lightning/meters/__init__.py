"""Energy meters: the energy of a run in joules, and its MaxPower in watts."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError

if TYPE_CHECKING:
    import torch

__all__ = ["EnergyMeter", "Reading", "open_host_meter", "open_meter"]

_CHOICES = (
    '"auto", "nvml", "nvml:0,1", "amd", "amd:0,1", "apple", "rapl", "nvml+rapl", "amd+rapl", '
    '"cpu-estimate", "cpu-estimate:5.0" (watts per core)'
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy and time read from a meter; the difference of two readings is a measurement.

    Args:
        energy_j: Joules over all devices since the meter was opened.
        time_s: Seconds on the clock of `time.monotonic`.
        cpu_energy_j: The part of `energy_j` that CPU packages and memory took, if the meter also
            counts GPUs.
    """

    energy_j: float
    time_s: float
    cpu_energy_j: float = 0.0

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(
            self.energy_j - earlier.energy_j,
            self.time_s - earlier.time_s,
            self.cpu_energy_j - earlier.cpu_energy_j,
        )


@runtime_checkable
class EnergyMeter(Protocol):
    """Counts the energy of some devices from the moment it is opened.

    A meter belongs to the process that opened it: open one in each rank, for that rank's device.

    Attributes:
        name: `nvml`, `rapl`, `nvml+rapl` or `cpu-estimate`. Figures of different meters cannot be
            compared.
        devices: What it counts, by names that are unique on the host: GPU UUIDs, RAPL packages. If
            several ranks of a run name the same devices, only the lowest rank's meter counts.
        device_model: Their model; several different ones are joined by ` + `.
        max_power_w: Sum over the devices of the highest settable power limit.
        is_estimate: Whether the figures are computed rather than measured.
    """

    name: str
    devices: tuple[str, ...]
    device_model: str
    max_power_w: float
    is_estimate: bool

    def read(self) -> Reading:
        """Return energy and time up to now; neither ever falls.

        Raises:
            ZeusMeterError: The devices cannot be read.
        """

    def close(self) -> None:
        """Release all resources; a second call does nothing, and no reading follows."""


@runtime_checkable
class HasPowerLimits(Protocol):
    """A meter of GPUs whose power limits can be read."""

    def power_limits_w(self) -> tuple[float, float] | None:
        """Return the current power limit and the default one; None if they cannot be read."""


def open_meter(
    meter: str | EnergyMeter = "auto", device: torch.device | None = None, pids: Sequence[int] = ()
) -> EnergyMeter:
    """Open the energy meter of one rank.

    Args:
        meter: The meter, or its name.
            `auto`: the first of these that works. The GPU that is `device`, if it is a CUDA device,
            by NVML or, with a ROCm build of torch, AMD SMI; the chip's counters on macOS, or RAPL
            elsewhere; the estimate. A warning says if the GPU cannot be read, as in a MIG slice.
            `nvml`: the GPU that is `device`; `nvml:0,1`: the GPUs of these NVML indices or UUIDs.
            `amd`: the AMD GPU that is `device`; `amd:0,1`: the GPUs with these indices of amd-smi.
            `apple`: an Apple silicon chip, GPU and memory included.
            `rapl`: the host's CPU packages.
            `nvml+rapl`, `nvml:0,1+rapl`, `amd+rapl`: those GPUs, the packages, and memory that has
            a counter.
            `cpu-estimate`: the CPU time of the run's process trees on this host times 3.5 W per
            core; `cpu-estimate:5.0`: times 5.0 W per core.
        device: The device on which this rank trains. Default: the CPU.
        pids: The run's processes on this host; this one is always included.

    Raises:
        ZeusConfigError: `meter` is none of these, or does not fit `device`.
        ZeusMeterError: The meter's devices cannot be read.

    Example:
        >>> meter = open_meter("cpu-estimate")
        >>> start = meter.read()
        >>> spent = meter.read() - start
        >>> print(f"{spent.energy_j} J in {spent.time_s} s")  # doctest: +SKIP
    """
    if isinstance(meter, EnergyMeter):
        return meter
    if not isinstance(meter, str):
        raise ZeusConfigError(f"meter={meter!r} is neither a meter nor one of {_CHOICES}")
    if meter.endswith("+rapl"):
        return _open_with_rapl(meter, device)
    kind, colon, argument = meter.partition(":")
    if kind in ("nvml", "amd"):
        return _open_gpus(meter, argument.split(",") if colon else [], device)
    if meter == "apple":
        from zeus_lightning.meters.apple import AppleMeter

        return AppleMeter()
    if kind == "cpu-estimate":
        return _open_cpu_estimate(meter, argument if colon else None, pids)
    if meter == "auto":
        return _open_first_that_works(device, pids)
    if meter == "rapl":
        return open_host_meter(meter)
    raise ZeusConfigError(f"meter={meter!r} is not one of {_CHOICES}")


def _open_first_that_works(device: torch.device | None, pids: Sequence[int]) -> EnergyMeter:
    if device is not None and device.type == "cuda":
        try:
            return _open_gpus("auto", [], device)
        except ZeusMeterError as error:
            from lightning.pytorch.utilities import rank_zero_warn

            rank_zero_warn(
                f"zeus: costs include only the host's CPUs, not the GPU: {error.fact}; "
                "see `zeus-lightning doctor`",
                stacklevel=6,  # three frames belong to rank_zero_warn
            )
    try:
        return open_host_meter()
    except ZeusMeterError:
        return _open_cpu_estimate("auto", None, pids)


def open_host_meter(meter: str = "auto") -> EnergyMeter:
    """Open the counters of the host's chip: on macOS Apple's, unless RAPL is asked for.

    Args:
        meter: `auto` or `rapl`.

    Raises:
        ZeusMeterError: They cannot be read.
    """
    if meter == "auto" and platform.system() == "Darwin":
        from zeus_lightning.meters.apple import AppleMeter

        return AppleMeter()
    from zeus_lightning.meters.rapl import RaplMeter

    return RaplMeter()


def _open_with_rapl(meter: str, device: torch.device | None) -> EnergyMeter:
    from zeus_lightning.meters.combined import CombinedMeter
    from zeus_lightning.meters.rapl import RaplMeter

    gpus = meter.removesuffix("+rapl")
    if gpus.partition(":")[0] not in ("nvml", "amd"):
        raise ZeusConfigError(f"meter={meter!r} is not one of {_CHOICES}")
    with ExitStack() as close_on_error:
        gpu_meter = close_on_error.enter_context(closing(open_meter(gpus, device)))
        combined = CombinedMeter(gpu_meter, RaplMeter(dram=True))
        close_on_error.pop_all()
    return combined


def _open_gpus(meter: str, gpus: list[str], device: torch.device | None) -> EnergyMeter:
    from zeus_lightning.meters.amd import AmdMeter, torch_is_rocm
    from zeus_lightning.meters.nvml import NvmlMeter

    kind = meter.partition(":")[0]
    if kind == "auto":
        kind = "amd" if torch_is_rocm() else "nvml"
    open_, maker = (AmdMeter, "AMD") if kind == "amd" else (NvmlMeter, "NVIDIA")
    cuda = device if device is not None and device.type == "cuda" else None
    names = [gpu.strip() for gpu in gpus]
    if not all(names):
        raise ZeusConfigError(f'meter={meter!r} names no GPU; use meter="{kind}:0,1", for example')
    if names:
        return open_([int(name) if name.isdecimal() else name for name in names], device=cuda)
    if cuda is None:
        raise ZeusConfigError(
            f"meter={meter!r} measures the {maker} GPU of this run, but the run trains on "
            f'{device or "the CPU"}; pass meter="auto", or name the GPUs: meter="{kind}:0"'
        )
    import torch

    if (kind == "amd") != torch_is_rocm():
        raise ZeusConfigError(
            f"meter={meter!r} measures {maker} GPUs, but this build of torch does not support "
            'them; pass meter="auto"'
        )
    # By UUID, since the drivers' indices do not follow CUDA_VISIBLE_DEVICES.
    return open_([f"GPU-{torch.cuda.get_device_properties(cuda).uuid}"], device=cuda)


def _open_cpu_estimate(meter: str, watts_per_core: str | None, pids: Sequence[int]) -> EnergyMeter:
    from zeus_lightning.meters.cpu_estimate import WATTS_PER_CORE, CpuEstimateMeter

    try:
        watts = WATTS_PER_CORE if watts_per_core is None else float(watts_per_core)
    except ValueError as error:
        raise ZeusConfigError(
            f'meter={meter!r} gives no watts per core; use meter="cpu-estimate:5.0", for example'
        ) from error
    return CpuEstimateMeter(watts, pids=pids)
