"""`RunMeter`: the energy and time of a run, over the devices of all its ranks."""

import math
import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import Thread

from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import Hardware
from zeus_lightning.meters import EnergyMeter, HasPowerLimits, Reading, open_meter
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.run.ranks import gather, on_every_rank, rank_of, ranks_text, sum_over_ranks

_LAST_READING_S = 0.5  # Lightning kills a ddp run 5 s after a rank's death

_LEFT_OUT = {
    "nvml": "CPUs, memory",
    "amd": "CPUs, memory",
    "apple": "disks, network",
    "rapl": "GPUs, memory",
    "nvml+rapl": "memory without a counter, disks",
    "amd+rapl": "memory without a counter, disks",
    "cpu-estimate": "GPUs, memory, idle power",
}


@dataclass(frozen=True)
class Claim:
    """The devices that one rank would count, by names that are unique over all hosts."""

    devices: list[str]
    model: str
    max_power_w: float
    meter: str = ""


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
                f"rank {rank} and a lower rank both measure {', '.join(sorted(again))}, but their "
                "other devices differ; give all ranks the same list of devices"
            )
    return ranks


def check_models(claims: Sequence[Claim]) -> None:
    """Raise a `ZeusConfigError` if ranks measure different models, or with different meters."""
    ranks: dict[str, list[int]] = {}
    for rank, claim in enumerate(claims):
        ranks.setdefault(f"{claim.model} ({claim.meter})", []).append(rank)
    if len(ranks) > 1:
        listed = "; ".join(f"{model} on {ranks_text(at)}" for model, at in ranks.items())
        raise ZeusConfigError(
            f"the ranks' devices or meters differ: {listed}; train on devices of one model with "
            "one meter"
        )


class RunMeter:
    """Measures a run; all its ranks open, start and read it together.

    Each rank opens the meter of its own device, by `open_meter(choice, ...)`. Devices that several
    ranks count, such as a node's CPU packages or a shared GPU, are counted once. Attributes are
    those of `EnergyMeter`; `max_power_w` is the sum over all devices.

    Args:
        choice: The meter, as for `open_meter`.
        strategy: The run's ranks.

    Raises:
        ZeusConfigError: The ranks' devices cannot be measured together.
        ZeusMeterError: A rank's meter cannot be opened.
    """

    def __init__(self, choice: str | EnergyMeter, strategy: Strategy) -> None:
        self._strategy = strategy
        self._opened = ExitStack()  # closes the meter, unless the caller passed it in
        host = _host()
        processes = gather(strategy, (host, os.getpid()))
        self._num_devices = len(processes)
        pids = [pid for its_host, pid in processes if its_host == host]
        try:
            self._meter = on_every_rank(strategy, lambda: self._open(choice, pids))
            own = on_every_rank(strategy, lambda: self._claim(host))
            claims = gather(strategy, own)
            check_models([parts[0] for parts in claims])
            counting = [counting_ranks(of_ranks) for of_ranks in zip(*claims, strict=True)]
        except BaseException:
            self.close()
            raise
        own_rank = rank_of(strategy)
        self._counted = [
            meter for meter, ranks in zip(self._parts, counting, strict=True) if own_rank in ranks
        ]
        self.max_power_w = sum(
            claims[rank][part].max_power_w for part, ranks in enumerate(counting) for rank in ranks
        )
        # this rank's part of all energy: by power until the energies are known
        own_w = sum(claim.max_power_w for claim in own)
        self._part = own_w / self.max_power_w if self.max_power_w else 1.0
        self._cpu_part = 1.0
        self._before = Reading(0.0, 0.0)
        self._began: list[tuple[EnergyMeter, Reading]] = []
        self._host_loads: list[float] = []
        self._last = self._before

    def _open(self, choice: str | EnergyMeter, pids: Sequence[int]) -> EnergyMeter:
        meter = open_meter(choice, self._strategy.root_device, pids)
        if isinstance(choice, str):
            self._opened.callback(meter.close)  # also if another rank's cannot be opened
        return meter

    @property
    def _parts(self) -> list[EnergyMeter]:
        """Meters whose devices are shared in different ways: a rank's GPUs, a host's CPUs."""
        meter = self._meter
        return [meter.gpus, meter.cpus] if isinstance(meter, CombinedMeter) else [meter]

    def _claim(self, host: str) -> list[Claim]:
        meter = self._meter
        return [
            Claim(
                [f"{device} of {host}" for device in part.devices],
                meter.device_model,
                float(part.max_power_w),
                meter.name,
            )
            for part in self._parts
        ]

    @property
    def hardware(self) -> Hardware:
        """What the run trains on."""
        return Hardware(
            device_model=self._meter.device_model,
            num_devices=self._num_devices,
            max_power_w=self.max_power_w,
            meter=self._meter.name,
            estimated=self._meter.is_estimate,
        )

    def scope(self) -> str:
        """What is measured and what is left out, in one line."""
        left_out = _LEFT_OUT.get(self._meter.name)
        text = f"{self._meter.device_model} with {self._meter.name}"
        return f"{text}; not included: {left_out}" if left_out else text

    def metrics(self, spent: Reading) -> dict[str, float]:
        """What to log; also the joules of GPUs and of CPUs, if the meter measures both."""
        metrics = {
            "zeus/energy_j": spent.energy_j,
            "zeus/time_s": spent.time_s,
            "zeus/power_w": spent.energy_j / max(spent.time_s, 1e-9),
        }
        if isinstance(self._meter, CombinedMeter):
            metrics["zeus/gpu_energy_j"] = spent.energy_j - spent.cpu_energy_j
            metrics["zeus/cpu_energy_j"] = spent.cpu_energy_j
        return metrics

    def power_limits_w(self) -> tuple[float, float] | None:
        """This rank's current and default GPU power limit in watts; None without GPUs.

        Uses no collective: `ZeusPowerLimitCallback` sets the same limit on all ranks.
        """
        return self._meter.power_limits_w() if isinstance(self._meter, HasPowerLimits) else None

    def host_load(self) -> float:
        """The load average of this rank's host per core, as the mean over the calls so far."""
        import psutil  # takes time, which importing the package must not

        self._host_loads.append(psutil.getloadavg()[0] / (psutil.cpu_count() or 1))
        return fmean(self._host_loads)

    def resume_from(self, spent: Reading) -> None:
        """Add what the run had spent before it was resumed."""
        self._before = self._last = spent

    def begin(self) -> None:
        """Start counting; raise a `ZeusMeterError` if this rank's devices cannot be read."""
        self._began = [(part, part.read()) for part in self._counted]

    def spent(self) -> Reading:
        """Joules over all devices (NaN if a meter fails) and seconds since the run began."""
        try:
            own = self._own()
        except Exception as error:  # noqa: BLE001 - of any meter; the other ranks wait for the sum
            warnings.warn(f"zeus: {error}", stacklevel=2)  # on this rank
            own = Reading(energy_j=math.nan, time_s=0.0)
        energy_j, cpu_j = sum_over_ranks(self._strategy, own.energy_j), 0.0
        if isinstance(self._meter, CombinedMeter):
            cpu_j = sum_over_ranks(self._strategy, own.cpu_energy_j)
        if energy_j > 0:
            self._part = own.energy_j / energy_j
        if cpu_j > 0:
            self._cpu_part = own.cpu_energy_j / cpu_j
        self._last = self._with_earlier(energy_j, own.time_s, cpu_j)
        return self._last

    def spent_by_now(self) -> Reading:
        """Joules and seconds since the run began, without a collective.

        On several ranks, which train in step, the others' joules are estimated from this one's.
        """
        if self._part:
            with suppress(Exception):  # a broken device must not keep a checkpoint from being saved
                own = self._own()
                cpu_j = own.cpu_energy_j / self._cpu_part if self._cpu_part else 0.0
                return self._with_earlier(own.energy_j / self._part, own.time_s, cpu_j)
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
        energy_j = time_s = cpu_j = 0.0
        for part, began in self._began:
            reading = part.read()
            part_j = reading.energy_j - began.energy_j
            energy_j += part_j
            cpu_j += part_j if part is not self._parts[0] else 0.0
            time_s = reading.time_s - began.time_s
        return Reading(energy_j, time_s, cpu_j)

    def _with_earlier(self, energy_j: float, time_s: float, cpu_j: float) -> Reading:
        """Joules and seconds since `begin`, with what the run had spent before it was resumed."""
        before = self._before
        return Reading(
            before.energy_j + energy_j, before.time_s + time_s, before.cpu_energy_j + cpu_j
        )


def _host() -> str:
    """A name of this machine, the same in all its containers."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
