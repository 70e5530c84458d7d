"""The energy of Apple silicon, through zeus-apple-silicon (the extra `apple`)."""

from __future__ import annotations

import importlib
import os
import platform
import time
from typing import Any

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import Reading
from zeus_lightning.meters.cpu_estimate import assumed_max_power_w

_PARTS = ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj")


class AppleMeter:
    """Counts the energy of the chip, its memory included; an `EnergyMeter`.

    macOS has no power limits, so MaxPower is assumed to be the estimate's watts for each core, with
    a warning. This meter has been tried on a module made for tests, never on a Mac.

    Raises:
        ZeusMeterError: zeus-apple-silicon is not installed, or the chip cannot be read.
    """

    name: str = "apple"
    is_estimate: bool = False

    def __init__(self) -> None:
        try:
            library: Any = importlib.import_module("zeus_apple_silicon")
            self._monitor = library.AppleEnergyMonitor()
        except Exception as error:  # any: the library may be missing
            raise ZeusMeterError(
                f"cannot read the energy of Apple silicon: {error}; this needs an Apple silicon "
                "Mac and `pip install zeus-apple-silicon`"
            ) from error
        self.devices: tuple[str, ...] = ("apple silicon",)
        self.device_model: str = f"Apple {platform.machine()}, {os.cpu_count()} cores"
        self.max_power_w: float = assumed_max_power_w("Apple silicon")
        self._first_mj = self._energy_mj()

    def read(self) -> Reading:
        """Return the energy of the chip since the meter was opened."""
        return Reading((self._energy_mj() - self._first_mj) / 1e3, time.monotonic())

    def close(self) -> None:
        """Do nothing: the library keeps nothing open."""

    def _energy_mj(self) -> int:
        try:
            found = self._monitor.get_cumulative_energy()
        except Exception as error:  # the library's own
            raise ZeusMeterError(
                f'cannot read the energy of Apple silicon: {error}; pass meter="cpu-estimate"'
            ) from error
        parts = [getattr(found, part, None) for part in _PARTS]
        if all(part is None for part in parts):
            raise ZeusMeterError('this Apple silicon reports no energy; pass meter="cpu-estimate"')
        return sum(part for part in parts if part is not None)
