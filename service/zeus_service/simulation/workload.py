"""A recurring training as recorded or made up: how long its runs take, at every batch size."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_service.spec import JobSpec


@dataclass(frozen=True)
class Epoch:
    """What one epoch takes, or several.

    Args:
        time_s: Duration in seconds.
        energy_j: Energy in joules.
    """

    time_s: float
    energy_j: float

    def cost(self, eta_knob: float, max_power_w: float) -> float:
        """`eta * energy + (1 - eta) * MaxPower * time`, in joules (Zeus, NSDI 2023)."""
        return eta_knob * self.energy_j + (1 - eta_knob) * max_power_w * self.time_s


@dataclass(frozen=True)
class Setting:
    """One batch size of a workload.

    Args:
        target_epochs: For each recorded run, the epoch that reached the target; infinite: never.
        epochs: One epoch at each power limit in watts.
    """

    target_epochs: tuple[float, ...]
    epochs: Mapping[float, Epoch]

    def best_power_limit(self, eta_knob: float, max_power_w: float) -> float:
        """The power limit in watts with the cheapest epoch."""
        return min(self.epochs, key=lambda limit: self.epochs[limit].cost(eta_knob, max_power_w))

    def expected_epochs(self, max_epochs: int) -> float:
        """Epochs until the target is reached, failed runs included; infinite: no run reaches it.

        With probability p that a run reaches it, 1 / p - 1 runs fail before, at the full price.
        """
        reached = [epochs for epochs in self.target_epochs if epochs <= max_epochs]
        failed = len(self.target_epochs) - len(reached)
        return (sum(reached) + failed * max_epochs) / len(reached) if reached else math.inf


@dataclass(frozen=True)
class Workload:
    """A training that recurs, on one kind of GPU.

    Args:
        name: What it is called in tables.
        gpu: The kind of GPU.
        settings: Its batch sizes, ascending.
        default_batch_size: What it would be trained with.
        max_epochs: Epochs after which a run has failed.
        max_power_w: The GPU's largest power limit in watts.
        left_out: Batch sizes with recorded runs, but no power data.
    """

    name: str
    gpu: str
    settings: Mapping[int, Setting]
    default_batch_size: int
    max_epochs: int
    max_power_w: float
    left_out: tuple[int, ...] = ()

    def at(self, recurrence: int) -> Workload:
        """The workload at a recurrence, from 0: this one does not change."""
        del recurrence
        return self

    @property
    def horizon(self) -> int:
        """Recurrences that the Zeus paper simulates: 2 x batch sizes x power limits."""
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
                "max_epochs": self.max_epochs,
                "max_power_w": self.max_power_w,
                "num_devices": 1,
                "device_model": self.gpu,
                "meter": "recorded",
                **knobs,
            }
        )

    def expected_cost(self, batch_size: int, eta_knob: float) -> float:
        """Cost in joules of reaching the target with a batch size at its best power limit."""
        setting = self.settings[batch_size]
        limit = setting.best_power_limit(eta_knob, self.max_power_w)
        epochs = setting.expected_epochs(self.max_epochs)
        return epochs * setting.epochs[limit].cost(eta_knob, self.max_power_w)

    def oracle(self, eta_knob: float) -> int:
        """The batch size of the lowest expected cost."""
        return min(self.settings, key=lambda size: self.expected_cost(size, eta_knob))


@dataclass(frozen=True)
class Drift:
    """A workload that changes: each phase lasts for some recurrences, the last one for ever.

    Args:
        phases: Workloads with the same batch sizes, limits and default.
        length: Recurrences of each phase.
    """

    phases: Sequence[Workload]
    length: int

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return self.phases[0].name

    @property
    def gpu(self) -> str:
        """The kind of GPU."""
        return self.phases[0].gpu

    def at(self, recurrence: int) -> Workload:
        """The workload at a recurrence, from 0."""
        return self.phases[min(recurrence // self.length, len(self.phases) - 1)]

    @property
    def horizon(self) -> int:
        """Recurrences from the first phase to the end of the last."""
        return len(self.phases) * self.length

    def spec(self, **knobs: Any) -> JobSpec:
        """The job as a client would register it."""
        return self.phases[0].spec(**knobs)
