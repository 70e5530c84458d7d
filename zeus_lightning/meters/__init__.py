"""Energy meters: the energy of a run in joules, and its MaxPower in watts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    meter: str | EnergyMeter = "auto", device: torch.device | None = None, pids: Sequence[int] = ()
) -> EnergyMeter:
    """Open the energy meter of one rank.

    Args:
        meter: The meter, or its name.
            `auto`: NVML if `device` is a CUDA device, else RAPL if it can be read, else the
            estimate, with a warning.
            `nvml`: the GPU that is `device`; `nvml:0,1`: the GPUs of these NVML indices or UUIDs.
            `rapl`: the host's CPU packages.
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
    kind, colon, argument = meter.partition(":")
    if kind == "nvml" or (meter == "auto" and device is not None and device.type == "cuda"):
        return _open_nvml(meter, argument.split(",") if colon else [], device)
    if kind == "cpu-estimate":
        return _open_cpu_estimate(meter, argument if colon else None, pids)
    if meter not in ("auto", "rapl"):
        raise ZeusConfigError(f"meter={meter!r} is not one of {_CHOICES}")
    from zeus_lightning.meters.rapl import RaplMeter

    try:
        return RaplMeter()
    except ZeusMeterError as error:
        if meter == "rapl":
            raise
        from lightning.pytorch.utilities import rank_zero_warn

        rank_zero_warn(
            f"zeus: energy is estimated, as CPU time times watts per core: {error}",
            stacklevel=5,  # three frames belong to rank_zero_warn
        )
        return _open_cpu_estimate(meter, None, pids)


def _open_nvml(meter: str, gpus: list[str], device: torch.device | None) -> EnergyMeter:
    from zeus_lightning.meters.nvml import NvmlMeter

    cuda = device if device is not None and device.type == "cuda" else None
    names = [gpu.strip() for gpu in gpus]
    if not all(names):
        raise ZeusConfigError(f'meter={meter!r} names no GPU: write it as in meter="nvml:0,1"')
    if names:
        return NvmlMeter([int(name) if name.isdecimal() else name for name in names], device=cuda)
    if cuda is None:
        raise ZeusConfigError(
            f"meter={meter!r} counts the GPU that trains, and this run trains on "
            f'{device or "the CPU"}: name the GPUs to count, as in meter="nvml:0"; without an '
            'NVIDIA GPU, choose meter="auto"'
        )
    import torch

    # By UUID, since NVML's indices do not follow CUDA_VISIBLE_DEVICES.
    return NvmlMeter([f"GPU-{torch.cuda.get_device_properties(cuda).uuid}"], device=cuda)


def _open_cpu_estimate(meter: str, watts_per_core: str | None, pids: Sequence[int]) -> EnergyMeter:
    from zeus_lightning.meters.cpu_estimate import WATTS_PER_CORE, CpuEstimateMeter

    try:
        watts = WATTS_PER_CORE if watts_per_core is None else float(watts_per_core)
    except ValueError as error:
        raise ZeusConfigError(
            f'meter={meter!r} gives no watts per core: write it as in meter="cpu-estimate:5.0"'
        ) from error
    return CpuEstimateMeter(watts, pids=pids)
