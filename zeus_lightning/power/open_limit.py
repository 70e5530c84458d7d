"""Open the power limit of a GPU, whoever made it."""

from __future__ import annotations

from zeus_lightning.meters.amd import AMD_PREFIX
from zeus_lightning.power.limits import PowerLimit
from zeus_lightning.zeusd import Zeusd


def open_limit(gpu: str, zeusd: Zeusd | None = None) -> PowerLimit:
    """Open the limit of a GPU that a meter names, NVIDIA's or AMD's."""
    if gpu.startswith(AMD_PREFIX):
        from zeus_lightning.power.amd_limits import AmdPowerLimit

        return AmdPowerLimit(gpu, zeusd)
    return PowerLimit(gpu, zeusd)
