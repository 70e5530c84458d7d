"""A recurring training, recorded or synthetic: how long its runs take with each batch size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zeus_service.bandit.spec import Hardware, JobSpec


@dataclass(frozen=True)
class Epoch:
    """Time in seconds and energy in joules of one or several epochs."""

    time_s: float
    energy_j: float

    def cost(self, eta_knob: float, max_power_w: float) -> float:
        """`eta * energy + (1 - eta) * MaxPower * time`, in joules (Zeus, NSDI 2023)."""
        return eta_knob * self.energy_j + (1 - eta_knob) * max_power_w * self.time_s

    def times(self, factor: float) -> Epoch:
        """The time and energy of `factor` such epochs."""
        return Epoch(factor * self.time_s, factor * self.energy_j)


@dataclass(frozen=True)
class Price:
    """What an epoch costs in joules with one batch size at its best power limit.

    `profiling` is an epoch that tries all power limits: the mean over them.
    """

    power_limit_w: float
    epoch: Epoch
    epoch_cost: float
    profiling: Epoch


@dataclass(frozen=True)
class Setting:
    """One batch size of a workload.

    Args:
        target_epochs: For each recorded run, the epoch that reached the target; infinite: never.
        epochs: One epoch at each power limit in watts.
        out_of_memory: The probability that a run runs out of memory, after a tenth of its epochs.
            Only `replay` considers it.
    """

    target_epochs: tuple[float, ...]
    epochs: Mapping[float, Epoch]
    out_of_memory: float = 0.0

    def price(self, eta_knob: float, max_power_w: float) -> Price:
        """The price at the power limit of the cheapest epoch."""
        costs = {limit: each.cost(eta_knob, max_power_w) for limit, each in self.epochs.items()}
        best = min(costs, key=lambda limit: costs[limit])
        epochs = self.epochs.values()
        profiling = Epoch(
            sum(each.time_s for each in epochs) / len(epochs),
            sum(each.energy_j for each in epochs) / len(epochs),
        )
        return Price(best, self.epochs[best], costs[best], profiling)

    def expected_epochs(self, max_epochs: int) -> float:
        """Epochs until the target is reached; infinite if no run reaches it.

        If a run reaches it with probability p, 1 / p - 1 runs of `max_epochs` fail before.
        """
        reached = [epochs for epochs in self.target_epochs if epochs <= max_epochs]
        failed = len(self.target_epochs) - len(reached)
        return (sum(reached) + failed * max_epochs) / len(reached) if reached else math.inf


@dataclass(frozen=True)
class Workload:
    """A training that recurs, on one kind of GPU; it may drift from phase to phase.

    Args:
        settings: Its batch sizes, ascending.
        default_batch_size: The batch size from which exploration starts.
        max_epochs: Epochs after which a run has failed.
        max_power_w: The GPU's largest power limit in watts.
        phases: Workloads that take its place, each for `phase_length` recurrences, the last for
            ever; they have the same batch sizes, limits and default. Empty: it does not drift.
    """

    name: str
    gpu: str
    settings: Mapping[int, Setting]
    default_batch_size: int
    max_epochs: int
    max_power_w: float
    phases: tuple[Workload, ...] = ()
    phase_length: int = 0

    def at(self, recurrence: int) -> Workload:
        """The workload at a recurrence, counted from 0."""
        if not self.phases:
            return self
        return self.phases[min(recurrence // self.phase_length, len(self.phases) - 1)]

    @property
    def horizon(self) -> int:
        """All phases, or, as in the Zeus paper, 2 x batch sizes x power limits recurrences."""
        if self.phases:
            return len(self.phases) * self.phase_length
        limits = {limit for setting in self.settings.values() for limit in setting.epochs}
        return 2 * len(self.settings) * len(limits)

    def spec(self, **knobs: Any) -> JobSpec:
        """The job as a client would register it; `knobs` are further fields of `JobSpec`."""
        return JobSpec.model_validate(
            {
                "job_id": re.sub(r"[^A-Za-z0-9.-]", "-", f"simulated-{self.name}-{self.gpu}")[:255],
                "batch_sizes": list(self.settings),
                "default_batch_size": self.default_batch_size,
                "target_metric": 1.0,
                "monitor": "reached",
                "higher_is_better": True,
                "max_epochs": self.max_epochs,
                **knobs,
            }
        )

    @property
    def hardware(self) -> Hardware:
        """What all runs are trained on."""
        return Hardware(self.gpu, 1, self.max_power_w, meter="recorded")

    def expected_cost(self, batch_size: int, eta_knob: float) -> float:
        """Cost in joules of reaching the target with a batch size at its best power limit."""
        setting = self.settings[batch_size]
        epoch_cost = setting.price(eta_knob, self.max_power_w).epoch_cost
        return setting.expected_epochs(self.max_epochs) * epoch_cost

    def oracle(self, eta_knob: float) -> int:
        """The batch size of the lowest expected cost."""
        return min(self.settings, key=lambda size: self.expected_cost(size, eta_knob))

    def default_at_full_power(self) -> Epoch:
        """Expected time and energy of the default batch size at its largest power limit."""
        setting = self.settings[self.default_batch_size]
        return setting.epochs[max(setting.epochs)].times(setting.expected_epochs(self.max_epochs))
