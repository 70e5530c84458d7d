"""Open the power limit of a GPU, whoever made it."""

from __future__ import annotations

from zeus_lightning.meters.amd import AMD_PREFIX
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.nvml_limits import NvmlLimit
from zeus_lightning.zeusd import Zeusd


def open_limit(gpu: str, zeusd: Zeusd | None = None) -> GpuLimit:
    """Open the limit of a GPU that a meter names, NVIDIA's or AMD's."""
    if gpu.startswith(AMD_PREFIX):
        from zeus_lightning.power.amd_limits import AmdLimit

        return AmdLimit(gpu, zeusd)
    return NvmlLimit(gpu, zeusd)
