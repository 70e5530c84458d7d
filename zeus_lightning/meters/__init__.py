"""Energy meters: what a run consumes, in joules, and the highest power it could draw, in watts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters.protocol import EnergyMeter, Reading

if TYPE_CHECKING:
    import torch

__all__ = ["EnergyMeter", "Reading", "open_meter"]

_CHOICES = (
    '"auto", "nvml", "nvml:0,1" (NVML indices or UUIDs), "rapl", "cpu-estimate", '
    '"cpu-estimate:5.0" (watts per core)'
)


def open_meter(
    meter: str | EnergyMeter = "auto",
    device: torch.device | None = None,
    pids: Sequence[int] = (),
) -> EnergyMeter:
    """Open the energy meter of one rank.

    Args:
        meter: What to measure with.
            `auto`: NVML when `device` is a CUDA device, else RAPL where it can be read, else the
            estimate, with a warning.
            `nvml`: the GPU that is `device`; `nvml:0,1`: the GPUs of these NVML indices or UUIDs.
            `rapl`: the host's CPU packages.
            `cpu-estimate`: the CPU time of the run's process trees on this host times 3.5 W per
            core; `cpu-estimate:5.0`: times 5.0 W per core.
            A meter: that one.
        device: Where this rank trains; None: on the CPU.
        pids: The run's processes on this host; this one is always among them.

    Raises:
        ZeusConfigError: `meter` is none of these, or does not go with `device`.
        ZeusMeterError: The meter's devices cannot be read.

    Example:
        >>> meter = open_meter("cpu-estimate")
        >>> start = meter.read()
        >>> spent = meter.read() - start
        >>> print(f"{spent.energy_j} J in {spent.time_s} s")  # doctest: +SKIP
    """
    if not isinstance(meter, str):
        if isinstance(meter, EnergyMeter):
            return meter
        raise ZeusConfigError(f"meter={meter!r} is neither a meter nor one of {_CHOICES}")
    kind, colon, argument = meter.partition(":")
    if kind == "nvml":
        return _open_nvml(meter, argument.split(",") if colon else [], device)
    if kind == "cpu-estimate":
        return _open_cpu_estimate(meter, argument if colon else None, pids)
    if meter == "rapl":
        return _open_rapl()
    if meter == "auto":
        return _open_auto(device, pids)
    raise ZeusConfigError(f"meter={meter!r} is not one of {_CHOICES}")


def _open_auto(device: torch.device | None, pids: Sequence[int]) -> EnergyMeter:
    if device is not None and device.type == "cuda":
        return _open_nvml("auto", [], device)
    try:
        return _open_rapl()
    except ZeusMeterError as error:
        estimate = _open_cpu_estimate("auto", None, pids)
        rank_zero_warn(
            f"zeus: energy is estimated, as CPU time times watts per core: {error}",
            stacklevel=6,  # three frames are rank_zero_warn's own
        )
        return estimate


def _open_nvml(meter: str, gpus: list[str], device: torch.device | None) -> EnergyMeter:
    from zeus_lightning.meters.nvml import NvmlMeter

    cuda = device if device is not None and device.type == "cuda" else None
    if not all(gpu.strip() for gpu in gpus):
        raise ZeusConfigError(f'meter={meter!r} names no GPU: write it as in meter="nvml:0,1"')
    if gpus:
        return NvmlMeter(
            [int(gpu) if gpu.strip().isdecimal() else gpu.strip() for gpu in gpus], device=cuda
        )
    if cuda is None:
        raise ZeusConfigError(
            f"meter={meter!r} counts the GPU that trains, and this run trains on "
            f'{device or "the CPU"}: name the GPUs to count, as in meter="nvml:0"'
        )
    return NvmlMeter([_uuid(cuda)], device=cuda)


def _uuid(cuda: torch.device) -> str:
    """The GPU's name for NVML, whose indices know nothing of `CUDA_VISIBLE_DEVICES`."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(cuda).uuid}"


def _open_rapl() -> EnergyMeter:
    from zeus_lightning.meters.rapl import RaplMeter

    return RaplMeter()


def _open_cpu_estimate(meter: str, watts_per_core: str | None, pids: Sequence[int]) -> EnergyMeter:
    from zeus_lightning.meters.cpu_estimate import CpuEstimateMeter

    if watts_per_core is None:
        return CpuEstimateMeter(pids=pids)
    try:
        watts = float(watts_per_core)
    except ValueError as error:
        raise ZeusConfigError(
            f'meter={meter!r} gives no watts per core: write it as in meter="cpu-estimate:5.0"'
        ) from error
    return CpuEstimateMeter(watts, pids=pids)
