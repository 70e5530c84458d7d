"""`RunMeter`: the energy and time of a run, over the devices of all its ranks."""

import math
import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import EnergyMeter, Reading, open_meter
from zeus_lightning.ranks.distributed import gather, on_every_rank, rank_of, sum_over_ranks

_LAST_READING_S = 0.5  # Lightning kills a ddp run 5 s after a rank's death


@dataclass(frozen=True)
class Claim:
    """The devices that one rank's meter would count, by names that are unique over all hosts."""

    devices: list[str]
    model: str
    max_power_w: float


def counting_ranks(claims: Sequence[Claim]) -> list[int]:
    """The ranks whose meters are summed: the lowest of those that count the same devices."""
    counted: set[str] = set()
    ranks = []
    for rank, claim in enumerate(claims):
        again = counted.intersection(claim.devices)
        if not again:
            ranks.append(rank)
            counted.update(claim.devices)
        elif not counted.issuperset(claim.devices):
            raise ZeusConfigError(
                f"rank {rank} counts {', '.join(sorted(again))}, which a lower rank also counts, "
                "and devices that no lower rank counts; give all ranks the same list of devices, "
                'or let each count its own with meter="nvml"'
            )
    return ranks


def check_models(claims: Sequence[Claim]) -> None:
    """Raise a `ZeusConfigError` unless all ranks measure the same model by the same meter."""
    ranks: dict[str, list[str]] = {}
    for rank, claim in enumerate(claims):
        ranks.setdefault(claim.model, []).append(str(rank))
    if len(ranks) > 1:
        listed = "; ".join(f"{model} on rank {', '.join(at)}" for model, at in ranks.items())
        raise ZeusConfigError(
            f"the ranks measure different devices: {listed}. Costs on different models cannot be "
            "compared; train on devices of one model, or pass another meter=..."
        )


class RunMeter:
    """Measures a run; all its ranks open, start and read it together.

    Each rank opens the meter of its own device, by `open_meter(choice, ...)`. Devices that several
    ranks count, such as a node's CPU packages or a shared GPU, are counted once. Attributes are
    those of `EnergyMeter`; `max_power_w` is the sum over all devices.

    Raises:
        ZeusConfigError: The ranks' devices cannot be measured together.
        ZeusMeterError: A rank's meter cannot be opened.
    """

    def __init__(self, choice: str | EnergyMeter, strategy: Strategy) -> None:
        self._strategy = strategy
        self._opened = ExitStack()  # closes the meter, unless the caller passed it in
        host = _host()
        processes = gather(strategy, (host, os.getpid()))
        pids = [pid for its_host, pid in processes if its_host == host]
        try:
            self._meter = on_every_rank(strategy, lambda: self._open(choice, pids))
            own = on_every_rank(strategy, lambda: self._claim(host))
            claims = gather(strategy, own)
            check_models(claims)
            ranks = counting_ranks(claims)
        except BaseException:
            self.close()
            raise
        self._counts = rank_of(strategy) in ranks
        self.max_power_w = sum(claims[rank].max_power_w for rank in ranks)
        # this rank's part of all energy: by power until the energies are known
        self._part = own.max_power_w / self.max_power_w if self.max_power_w else 1.0
        self._before = Reading(0.0, 0.0)
        self._began: Reading | None = None
        self._last = self._before

    def _open(self, choice: str | EnergyMeter, pids: Sequence[int]) -> EnergyMeter:
        meter = open_meter(choice, self._strategy.root_device, pids)
        if isinstance(choice, str):
            self._opened.callback(meter.close)  # also if another rank's cannot be opened
        return meter

    def _claim(self, host: str) -> Claim:
        self.name: str = self._meter.name
        self.device_model: str = self._meter.device_model
        self.is_estimate: bool = self._meter.is_estimate
        devices = [f"{device} of {host}" for device in self._meter.devices]
        model = f"{self.device_model} by {self.name}"
        return Claim(devices, model, float(self._meter.max_power_w))

    def resume_from(self, spent: Reading) -> None:
        """Add what the run had spent before it was resumed."""
        self._before = self._last = spent

    def begin(self) -> None:
        """Start counting; raise a `ZeusMeterError` if this rank's devices cannot be read."""
        self._began = self._read()

    def spent(self) -> Reading:
        """Joules over all devices (NaN if a meter fails) and seconds since the run began."""
        try:
            own = self._own()
        except ZeusMeterError as error:
            warnings.warn(f"zeus: {error.message}", stacklevel=2)  # on this rank
            own = Reading(energy_j=math.nan, time_s=0.0)
        energy_j = sum_over_ranks(self._strategy, own.energy_j)
        if energy_j > 0:
            self._part = own.energy_j / energy_j
        self._last = self._before + Reading(energy_j, own.time_s)
        return self._last

    def spent_by_now(self) -> Reading:
        """Joules and seconds since the run began, without a collective.

        On several ranks, which train in step, the others' joules are estimated from this one's.
        """
        if self._part:
            with suppress(Exception):  # a broken device must not keep a checkpoint from being saved
                own = self._own()
                return self._before + Reading(own.energy_j / self._part, own.time_s)
        return self._last

    def spent_at_end(self) -> Reading:
        """The same after an exception, when a device may never answer: half a second at most."""
        spent = [self._last]
        read = Thread(target=lambda: spent.append(self.spent_by_now()), daemon=True)
        read.start()
        read.join(_LAST_READING_S)
        return spent[-1]

    def close(self) -> None:
        """Close the meter, unless the caller passed it in."""
        self._opened.close()

    def _own(self) -> Reading:
        """Joules and seconds that this rank counts since `begin`; zero before."""
        return Reading(0.0, 0.0) if self._began is None else self._read() - self._began

    def _read(self) -> Reading:
        return self._meter.read() if self._counts else Reading(0.0, 0.0)


def _host() -> str:
    """A name of this machine, the same in all its containers."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
