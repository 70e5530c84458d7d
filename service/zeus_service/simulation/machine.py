"""What runs cost, and how they end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from zeus_service.policies import Choice, Verdict, Why
from zeus_service.simulation.workload import Epoch, Setting, Workload
from zeus_service.spec import JobSpec


@dataclass(frozen=True)
class Price:
    """An epoch with one batch size at its best power limit.

    Args:
        power_limit_w: That limit, in watts.
        epoch: An epoch at that limit.
        epoch_cost: Its cost in joules.
        profiling: An epoch that tries all power limits: the mean over them.
    """

    power_limit_w: float
    epoch: Epoch
    epoch_cost: float
    profiling: Epoch


@dataclass(frozen=True)
class Run:
    """How a run ended, and what it had taken by then."""

    verdict: Verdict
    epochs: int
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Started:
    """A trial that starts.

    Args:
        cost_bound: Cost in joules past which it is to be stopped; infinite: no bound.
    """

    number: int
    choice: Choice
    cost_bound: float


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Args:
        recurrence: From 0; a failed run's retry belongs to the same one.
        number: Of the trial in its job, from 1, in the order of starts.
        power_limit_w: In watts.
        cost: What it has spent, in joules.
    """

    recurrence: int
    number: int
    batch_size: int
    power_limit_w: float
    why: Why
    verdict: Verdict
    epochs: int
    time_s: float
    energy_j: float
    cost: float


class Machine:
    """Where a job's runs take place: it knows what the recorded ones took."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._luck = Luck(spec.random_seed())
        self._prices: dict[tuple[int, int], Price] = {}
        self._tried: set[int] = set()

    def price(self, workload: Workload, batch_size: int) -> Price:
        """What a batch size's epochs cost."""
        key = (id(workload), batch_size)
        if key not in self._prices:
            setting = workload.settings[batch_size]
            self._prices[key] = price(setting, self._spec.eta_knob, workload.max_power_w)
        return self._prices[key]

    def first_try(self, batch_size: int) -> bool:
        """Whether a batch size has not been tried before; it has been from now on."""
        first = batch_size not in self._tried
        self._tried.add(batch_size)
        return first

    def target_epoch(self, workload: Workload, batch_size: int) -> float:
        """The epoch in which the next run reaches its target; infinite: never."""
        return self._luck.draw(batch_size, workload.settings[batch_size].target_epochs)

    def run(self, workload: Workload, started: Started, recurrence: int) -> Trial:
        """Run a trial to its end."""
        batch_size = started.choice.batch_size
        ended = run(
            self.price(workload, batch_size),
            self.target_epoch(workload, batch_size),
            max_epochs=workload.max_epochs,
            cost_bound=started.cost_bound,
            profiling=self.first_try(batch_size),
        )
        return self.ended(workload, started, recurrence, ended)

    def ended(self, workload: Workload, started: Started, recurrence: int, ended: Run) -> Trial:
        """The trial of a run that has ended."""
        batch_size = started.choice.batch_size
        return Trial(
            recurrence,
            started.number,
            batch_size,
            self.price(workload, batch_size).power_limit_w,
            started.choice.why,
            ended.verdict,
            ended.epochs,
            ended.time_s,
            ended.energy_j,
            self._spec.cost(ended.energy_j, ended.time_s),
        )


class Luck:
    """Which of the recorded runs each try is.

    A batch size's n-th try is the same run whatever happens to other batch sizes, so that policies
    are compared on the same luck.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draws: dict[int, np.random.Generator] = {}

    def draw(self, batch_size: int, runs: tuple[float, ...]) -> float:
        """One of a batch size's runs, each as likely."""
        if batch_size not in self._draws:
            # The third number keeps it apart from the policy's [seed, trial number].
            self._draws[batch_size] = np.random.default_rng([self._seed, batch_size, 1])
        return runs[int(self._draws[batch_size].random() * len(runs))]


def price(setting: Setting, eta_knob: float, max_power_w: float) -> Price:
    """Price a batch size's epochs."""
    limit = setting.best_power_limit(eta_knob, max_power_w)
    epoch = setting.epochs[limit]
    epochs = setting.epochs.values()
    profiling = Epoch(
        time_s=sum(each.time_s for each in epochs) / len(epochs),
        energy_j=sum(each.energy_j for each in epochs) / len(epochs),
    )
    return Price(limit, epoch, epoch.cost(eta_knob, max_power_w), profiling)


def run(
    price: Price, target_epoch: float, *, max_epochs: int, cost_bound: float, profiling: bool
) -> Run:
    """Train until the target, the last epoch before the bound, or the last epoch.

    Args:
        price: What an epoch costs.
        target_epoch: When this run would reach the target; infinite: never.
        max_epochs: The last epoch.
        cost_bound: Cost in joules that no epoch may cross; infinite: no bound.
        profiling: Whether the first epoch tries all power limits. It counts as any other against
            the bound.

    Source: `_run_job` of the simulator published with Zeus (NSDI 2023).
    """
    last = max_epochs
    if math.isfinite(cost_bound):
        last = int(min(cost_bound // price.epoch_cost, max_epochs))
    converged = target_epoch <= last
    epochs = int(target_epoch) if converged else last
    time_s, energy_j = taken(price, epochs, profiling=profiling)
    if converged:
        return Run("converged", epochs, time_s, energy_j)
    return Run("early_stopped" if last < max_epochs else "not_converged", epochs, time_s, energy_j)


def taken(price: Price, epochs: int, *, profiling: bool) -> tuple[float, float]:
    """Seconds and joules of a run's first epochs."""
    if not (profiling and epochs):
        return epochs * price.epoch.time_s, epochs * price.epoch.energy_j
    return (
        price.profiling.time_s + (epochs - 1) * price.epoch.time_s,
        price.profiling.energy_j + (epochs - 1) * price.epoch.energy_j,
    )
