"""The GPUs of one rank: their power limits, on loan, and the energy of a window."""

from __future__ import annotations

import math
from contextlib import suppress

import torch

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import EnergyMeter, Reading, open_meter
from zeus_lightning.power.limits import PowerLimit
from zeus_lightning.power.loan import Loan
from zeus_lightning.power.profiler import Disturbance, Window


class Gpus:
    """The GPUs that a rank's meter counts, one as a rule.

    Args:
        meter: As in `open_meter`; it must count NVIDIA GPUs.
        device: Where this rank trains.

    Attributes:
        device_model: Their model, as the meter names it.
        driver: The driver's version.
        min_w: Lowest settable power limit of each.
        max_w: Highest one.
        count: How many they are.

    Raises:
        ZeusConfigError: The meter counts no GPUs, or their limits have different ranges.
        ZeusMeterError: The meter cannot be opened.
        ZeusPowerError: A GPU's power limit cannot be read, or is fixed.
    """

    def __init__(self, meter: str | EnergyMeter, device: torch.device) -> None:
        self._meter = open_meter(meter, device)
        self._owns_meter = isinstance(meter, str)
        self._limits: list[PowerLimit] = []
        self._loans: list[Loan] = []
        self._began: Reading | None = None
        self._trouble = Disturbance.NONE
        try:
            _check_meter(self._meter)
            for uuid in self._meter.devices:
                self._limits.append(PowerLimit(uuid))
            ranges = [(limit.min_w, limit.max_w) for limit in self._limits]
            check_ranges({limit.uuid: (limit.min_w, limit.max_w) for limit in self._limits})
        except BaseException:
            self.close()
            raise
        self.device_model = self._meter.device_model
        self.driver = self._limits[0].driver
        self.min_w, self.max_w = ranges[0]
        self.count = len(self._limits)

    def borrow(self) -> list[str]:
        """Take the limits on loan, and check that they can be set.

        Returns:
            For a person, what was done about limits that killed processes left behind.

        Raises:
            ZeusPowerError: Another process has one on loan, or it cannot be set.
        """
        told = []
        for limit in self._limits:
            loan = Loan(limit)
            self._loans.append(loan)
            if loan.left_behind:
                told.append(loan.left_behind)
            limit.check_permission()
        return told

    def in_force_w(self) -> int:
        """The limit in force, rounded to whole watts; the highest where they differ."""
        return round(max(limit.read_mw() for limit in self._limits) / 1000)

    def set_w(self, limit_w: int) -> bool:
        """Set the limit of each; does nothing to limits that are not on loan.

        Returns:
            Whether it worked; if not, the next window is a disturbed one.
        """
        try:
            for loan in self._loans:
                loan.set_w(limit_w)
        except (ZeusPowerError, OSError) as error:
            self._note(_disturbance(error, Disturbance.NOT_SET))
            return False
        return True

    def start_window(self) -> None:
        """Begin to measure, or anew: wait for the work handed to the device, and read the meter."""
        self._began = self._read()

    def end_window(self) -> Window:
        """What was measured since the window's start, and what makes it useless."""
        began, ended = self._began, self._read()
        try:
            if not all(loan.is_in_force() for loan in self._loans):
                self._note(Disturbance.LIMIT_CHANGED)
        except ZeusPowerError as error:
            self._note(_disturbance(error, Disturbance.UNREADABLE))
        trouble, self._trouble, self._began = self._trouble, Disturbance.NONE, None
        if began is None or ended is None:
            return Window(math.nan, math.nan, trouble or Disturbance.UNREADABLE)
        spent = ended - began
        return Window(spent.energy_j, spent.time_s, trouble)

    def give_back(self) -> list[str]:
        """Put the limits found at the start back; never raises.

        Returns:
            Warnings for a person.
        """
        told = []
        while self._loans:
            try:
                told.append(self._loans.pop().give_back())
            except (ZeusPowerError, OSError) as error:
                told.append(
                    f"a power limit is not put back: {error}; `zeus-lightning reset-power-limits` "
                    "tries again"
                )
        return [text for text in told if text]

    def close(self) -> None:
        """Let go of the GPUs; limits still on loan stay so until the interpreter exits."""
        for limit in self._limits:
            limit.close()
        if self._owns_meter:
            with suppress(Exception):
                self._meter.close()

    def _read(self) -> Reading | None:
        try:
            return self._meter.read()
        except ZeusMeterError as error:
            self._note(_disturbance(error, Disturbance.UNREADABLE))
            return None

    def _note(self, disturbance: Disturbance) -> None:
        self._trouble = max(self._trouble, disturbance)


def _check_meter(meter: EnergyMeter) -> None:
    if meter.name != "nvml":
        raise ZeusConfigError(
            f"the meter is {meter.name}, but power limits are those of NVIDIA GPUs; choose "
            'meter="nvml", or meter="nvml:0,1" (NVML indices or UUIDs)'
        )


def check_ranges(ranges_w: dict[str, tuple[float, float]]) -> None:
    """Check that all GPUs have one range of limits: they are to be set to the same one.

    Args:
        ranges_w: Lowest and highest settable limit of each, by its name for a person.

    Raises:
        ZeusConfigError: They differ; all are listed.
    """
    if len(set(ranges_w.values())) > 1:
        listed = ", ".join(f"{who} {low:g} to {high:g} W" for who, (low, high) in ranges_w.items())
        raise ZeusConfigError(
            f"the GPUs' power limits have different ranges, so they cannot share one: {listed}; "
            "train on GPUs of one model"
        )


def _disturbance(error: Exception, otherwise: Disturbance) -> Disturbance:
    lost = isinstance(error, ZeusPowerError) and error.fields.get("why") == "gpu_lost"
    lost = lost or "GPU is lost" in str(error)  # as the meter tells it
    return Disturbance.GPU_LOST if lost else otherwise
