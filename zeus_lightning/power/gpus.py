"""The GPUs of one rank: their power limits, and the energy of a window."""

import math
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import torch
from lightning.pytorch.utilities import rank_zero_info

from zeus_lightning.errors import ZeusConfigError, ZeusError, ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import EnergyMeter, Reading, open_meter
from zeus_lightning.meters.amd import torch_is_rocm
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.profiler import Disturbance, Window
from zeus_lightning.power.restore import TemporaryLimit, restore_all
from zeus_lightning.zeusd import Zeusd


class Gpus:
    """The GPUs whose energy a rank's meter counts, usually one.

    Each rank warns about its own GPUs, since rank zero does not see them.

    Args:
        meter: As in `open_meter`; it must count NVIDIA or AMD GPUs. `auto` is the GPU that trains,
            never a meter of something else.
        device: The device on which this rank trains.
        zeusd: The daemon that sets the limits. Default: the driver.

    Attributes:
        device_model: The GPUs' model, as the meter names it.
        min_w: Lowest settable power limit of each GPU; `max_w` is the highest.
        count: Number of GPUs.
        uuids: Their UUIDs.

    Raises:
        ZeusConfigError: The meter counts no GPUs, or their limits have different ranges.
        ZeusMeterError: The meter cannot be opened.
        ZeusPowerError: No GPU trains, or a power limit cannot be read, or is fixed. The methods
            also raise it if a limit cannot be set or another process is setting it.
    """

    def __init__(
        self, meter: str | EnergyMeter, device: torch.device, zeusd: Zeusd | None = None
    ) -> None:
        if meter == "auto":
            if device.type != "cuda":
                raise ZeusPowerError(
                    f"this run trains on {device}, not on a GPU with a power limit; to set a GPU's "
                    'limit anyway, name it, as in meter="nvml:0"',
                    {"cause": "no_gpu"},
                )
            meter = "amd" if torch_is_rocm() else "nvml"
        self._meter = open_meter(meter, device)
        self._owns_meter = isinstance(meter, str)
        self._zeusd = zeusd
        self._limits: list[GpuLimit] = []
        self._controlled: list[TemporaryLimit] = []
        self._window_start: Reading | None = None
        self._disturbance = Disturbance.NONE
        with ExitStack() as close_on_error:
            close_on_error.callback(self.close)
            if self._meter.name not in ("nvml", "amd"):
                raise ZeusConfigError(
                    f"the meter is {self._meter.name}, but only GPUs have power limits; pass "
                    'meter="auto"'
                )
            for uuid in self._meter.devices:
                self._limits.append(GpuLimit(uuid, zeusd))
            check_ranges({limit.uuid: (limit.min_w, limit.max_w) for limit in self._limits})
            close_on_error.pop_all()
        first = self._limits[0]
        self.device_model = self._meter.device_model
        self.min_w, self.max_w = first.min_w, first.max_w
        self.uuids = [limit.uuid for limit in self._limits]
        self.count = len(self.uuids)

    def take_control(self) -> None:
        """Reserve the limits for this process, and restore those that killed processes left."""
        for limit in self._limits:
            temporary = TemporaryLimit(limit)
            self._controlled.append(temporary)
            _warn(temporary.recovered)
            limit.check_permission()
        if self._zeusd is not None:
            rank_zero_info(f"zeus: power limits are set and restored through {self._zeusd}")

    def restore_left(self) -> None:
        """Restore the limits that killed processes left, as far as that is allowed."""
        for _, _, message in restore_all(self.uuids):
            _warn(message)

    def limit_w(self) -> int:
        """Return the current limit in whole watts; the highest if the GPUs' limits differ."""
        return round(max(limit.read_mw() for limit in self._limits) / 1000)

    def set_w(self, limit_w: int) -> bool:
        """Set the limit of each GPU in control; return False if one refused, a disturbance."""
        try:
            for temporary in self._controlled:
                temporary.set_w(limit_w)
        except (ZeusPowerError, OSError) as error:
            self._note(error, Disturbance.NOT_SET)
            return False
        return True

    def start_window(self) -> None:
        """Read the meter, which waits for the work submitted to the device."""
        self._window_start = self._read()

    def end_window(self) -> Window:
        """Return what was measured since the window's start, and what disturbed it."""
        start, end = self._window_start, self._read()
        try:
            if not all(temporary.is_unchanged() for temporary in self._controlled):
                self._disturbance = max(self._disturbance, Disturbance.LIMIT_CHANGED)
        except ZeusPowerError as error:
            self._note(error, Disturbance.UNREADABLE)
        disturbance, self._disturbance = self._disturbance, Disturbance.NONE
        if start is None or end is None:
            return Window(math.nan, math.nan, disturbance or Disturbance.UNREADABLE)
        spent = end - start
        return Window(spent.energy_j, spent.time_s, disturbance)

    def restore(self) -> None:
        """Restore the limits found at the start, and give up control; warn of one that stays."""
        messages = []
        while self._controlled:
            try:
                messages.append(self._controlled.pop().restore())
            except (ZeusPowerError, OSError) as error:
                why = error.fact if isinstance(error, ZeusPowerError) else error
                again = "run `zeus-lightning reset-power-limits`"
                messages.append(f"a power limit was not restored: {why}; {again}")
        for message in messages:  # after the last limit: a filter may turn a warning into an error
            _warn(message)

    def close(self) -> None:
        """Restore the limits, and close the meter if it was opened here."""
        self.restore()
        for limit in self._limits:
            limit.close()
        if self._owns_meter:
            with suppress(Exception):
                self._meter.close()

    def _read(self) -> Reading | None:
        try:
            return self._meter.read()
        except ZeusMeterError as error:
            self._note(error, Disturbance.UNREADABLE)
            return None

    def _note(self, error: Exception, disturbance: Disturbance) -> None:
        """Record what disturbs the window: a lost GPU, or else the given disturbance."""
        if isinstance(error, ZeusError) and error.fields.get("cause") == "gpu_lost":
            disturbance = Disturbance.GPU_LOST
        self._disturbance = max(self._disturbance, disturbance)


def check_own(uuids: Sequence[Sequence[str]]) -> None:
    """Raise a `ZeusConfigError` if several ranks count the same GPU.

    Args:
        uuids: Each rank's GPUs.
    """
    for uuid in sorted({uuid for own in uuids for uuid in own}):
        ranks = [str(rank) for rank, own in enumerate(uuids) if uuid in own]
        if len(ranks) > 1:
            raise ZeusConfigError(
                f"ranks {', '.join(ranks)} train on the same GPU, {uuid}, but only one of them "
                "can set its power limit; give each rank its own GPU"
            )


def check_ranges(ranges_w: dict[str, tuple[float, float]]) -> None:
    """Raise a `ZeusConfigError` if the GPUs have different ranges: all are set to the same limit.

    Args:
        ranges_w: Lowest and highest settable limit, by a name for the message.
    """
    named: dict[tuple[float, float], list[str]] = {}
    for who, limits_w in ranges_w.items():
        named.setdefault(limits_w, []).append(who)
    if len(named) > 1:
        listed = "; ".join(
            f"{low:g} to {high:g} W on {gpus[0]}{' and others' if len(gpus) > 1 else ''}"
            for (low, high), gpus in named.items()
        )
        raise ZeusConfigError(
            f"the GPUs have different power-limit ranges ({listed}); train on GPUs of one model"
        )


def _warn(message: str) -> None:
    if message:
        warnings.warn(f"zeus: {message}", stacklevel=3)
