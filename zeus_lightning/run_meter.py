"""`RunMeter`: the energy and time of a run, over the devices of all its ranks."""

from __future__ import annotations

import math
import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lightning.pytorch.strategies import Strategy

from zeus_lightning.distributed import gather, on_every_rank, rank_of, sum_over_ranks
from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import EnergyMeter, Reading, open_meter


@dataclass(frozen=True)
class Claim:
    """What one rank's meter would count.

    Args:
        devices: Its devices, by names that are unique over all hosts.
        model: The meter and its devices' model.
        max_power_w: Sum over the devices of the highest settable power limit.
    """

    devices: list[str]
    model: str
    max_power_w: float


def counting_ranks(claims: Sequence[Claim]) -> list[int]:
    """The ranks whose meters are to be summed: of those that count the same, the lowest.

    Raises:
        ZeusConfigError: A rank counts devices that lower ranks count, and others besides.
    """
    counted: set[str] = set()
    ranks = []
    for rank, claim in enumerate(claims):
        again = counted.intersection(claim.devices)
        if not again:
            ranks.append(rank)
            counted.update(claim.devices)
        elif not counted.issuperset(claim.devices):
            raise ZeusConfigError(
                f"rank {rank} counts {', '.join(sorted(again))}, which a lower rank counts too, "
                "and other devices besides; give all ranks the same list of devices, or let each "
                'count its own with meter="nvml"'
            )
    return ranks


def check_models(claims: Sequence[Claim]) -> None:
    """Check that all ranks measure the same kind of device in the same way.

    Raises:
        ZeusConfigError: They do not; what each rank has is listed.
    """
    ranks: dict[str, list[str]] = {}
    for rank, claim in enumerate(claims):
        ranks.setdefault(claim.model, []).append(str(rank))
    if len(ranks) > 1:
        listed = "; ".join(f"{model} on rank {', '.join(at)}" for model, at in ranks.items())
        raise ZeusConfigError(
            f"the ranks measure different devices: {listed}. What a job costs on one model tells "
            "nothing about another; train on devices of one model, or choose another meter=..."
        )


class RunMeter:
    """Measures a run; opened, begun and read by all its ranks together.

    Each rank opens the meter of its own device. What several of them count, a node's CPU packages
    or a GPU that they share, is counted once.

    Args:
        choice: See `open_meter`. A meter given as such is its owner's to close.
        strategy: The run's strategy.

    Attributes:
        name: Of the ranks' meters.
        device_model: Of their devices.
        max_power_w: Sum over all devices of the highest settable power limit.
        is_estimate: Whether joules are computed rather than measured.

    Raises:
        ZeusConfigError: The ranks' devices do not go together.
        ZeusMeterError: A rank's meter cannot be opened.
    """

    def __init__(self, choice: str | EnergyMeter, strategy: Strategy) -> None:
        self._strategy = strategy
        self._owned = isinstance(choice, str)
        host = _host()
        processes = gather(strategy, [host, os.getpid()])
        pids = [pid for its_host, pid in processes if its_host == host]
        self._meter: EnergyMeter | None = on_every_rank(
            strategy, lambda: open_meter(choice, strategy.root_device, pids)
        )
        try:
            mine = on_every_rank(strategy, lambda: self._claim(host))
            claims = [Claim(**claim) for claim in gather(strategy, asdict(mine))]
            check_models(claims)
            ranks = counting_ranks(claims)
        except BaseException:
            self.close()
            raise
        self._counts = rank_of(strategy) in ranks
        self.max_power_w = sum(claims[rank].max_power_w for rank in ranks)
        # of all that is spent, this rank's part: by power at first, by energy once it is known
        self._part = mine.max_power_w / self.max_power_w if self.max_power_w else 1.0
        self._before = Reading(0.0, 0.0)
        self._began: Reading | None = None
        self._last = self._before

    def _claim(self, host: str) -> Claim:
        assert self._meter is not None
        self.name: str = self._meter.name
        self.device_model: str = self._meter.device_model
        self.is_estimate: bool = self._meter.is_estimate
        devices = [f"{device} of {host}" for device in self._meter.devices]
        model = f"{self.device_model} by {self.name}"
        return Claim(devices, model, float(self._meter.max_power_w))

    def go_on_from(self, spent: Reading) -> None:
        """Count on top of what a run has spent before it was resumed."""
        self._before = self._last = spent

    def begin(self) -> None:
        """Start counting.

        Raises:
            ZeusMeterError: This rank's devices cannot be read.
        """
        self._began = self._read()

    def spent(self) -> Reading:
        """Joules over all devices and seconds since the run began; a collective of all ranks.

        The joules are NaN when the meter of any rank failed.
        """
        own = self._own()
        energy_j = sum_over_ranks(self._strategy, own.energy_j)
        if energy_j > 0:
            self._part = own.energy_j / energy_j
        self._last = self._before + Reading(energy_j, own.time_s)
        return self._last

    def spent_by_now(self) -> Reading:
        """The same without asking other ranks, which may be gone or busy.

        Exact on one rank. On several, the others' joules are taken to have grown as this one's
        have: they train in step.
        """
        if self._began is None or not self._part:
            return self._last
        with suppress(Exception):  # whatever a broken device raises: a checkpoint is being saved
            own = self._read() - self._began
            return self._before + Reading(own.energy_j / self._part, own.time_s)
        return self._last

    def close(self) -> None:
        """Give back the meter that was opened."""
        meter, self._meter = self._meter, None
        if meter is not None and self._owned:
            meter.close()

    def _own(self) -> Reading:
        """What this rank's devices have spent since the run began."""
        assert self._began is not None
        try:
            return self._read() - self._began
        except ZeusMeterError as error:
            warnings.warn(f"zeus: {error.message}", stacklevel=2)  # of whichever rank it is
            return Reading(energy_j=math.nan, time_s=0.0)

    def _read(self) -> Reading:
        assert self._meter is not None
        return self._meter.read() if self._counts else Reading(0.0, 0.0)


def _host() -> str:
    """A name of this machine, the same in all its containers."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
