"""One simulated training run: what it costs, and how it ends."""

import math
from dataclasses import dataclass

import numpy as np

from zeus_service.bandit.outcomes import Result
from zeus_service.bandit.policy import Choice, Why
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.simulation.workload import Price, Workload


@dataclass(frozen=True)
class Run:
    """How a run ended, and the epochs, seconds and joules that it took."""

    result: Result
    epochs: int
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class StartedTrial:
    """A trial that has been started; `cost_bound` is in joules, infinite without a bound."""

    number: int
    choice: Choice
    hardware: Hardware
    cost_bound: float


@dataclass(frozen=True)
class SimulatedTrial:
    """A trial that has ended.

    Args:
        recurrence: Counted from 0; a failed run's retry belongs to the same one.
        number: The trial's number in its job, from 1, in the order of starts.
    """

    recurrence: int
    number: int
    batch_size: int
    power_limit_w: float
    why: Why
    result: Result
    epochs: int
    time_s: float
    energy_j: float
    cost: float


class TrialRunner:
    """Simulates the runs of one job's trials.

    A batch size's n-th run is the same whatever happens to other batch sizes, so that policies are
    compared on the same draws.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._draws: dict[int, np.random.Generator] = {}

    def draw(self, batch_size: int, target_epochs: tuple[float, ...]) -> tuple[float, bool]:
        """Draw the next run of a batch size from recorded ones, all equally likely.

        Returns:
            The epoch in which it reaches its target, and whether it is the batch size's first run.
        """
        first = batch_size not in self._draws
        if first:
            # The third number makes the draws independent of the policy's [seed, trial number].
            seed = [self._spec.random_seed(), batch_size, 1]
            self._draws[batch_size] = np.random.default_rng(seed)
        return target_epochs[int(self._draws[batch_size].random() * len(target_epochs))], first

    def run(self, workload: Workload, started: StartedTrial, recurrence: int) -> SimulatedTrial:
        """Run a trial to its end."""
        setting = workload.settings[started.choice.batch_size]
        target_epoch, first = self.draw(started.choice.batch_size, setting.target_epochs)
        price = setting.price(self._spec.eta_knob, workload.max_power_w)
        ended = run(price, target_epoch, workload.max_epochs, started.cost_bound, profiling=first)
        if setting.out_of_memory and self._chance(started) < setting.out_of_memory:
            epochs = math.ceil(min(target_epoch, workload.max_epochs) / 10)
            spent = _time_and_energy(price, epochs, profiling=first)
            ended = Run("out_of_memory", epochs, *spent)
        return SimulatedTrial(
            recurrence=recurrence,
            number=started.number,
            batch_size=started.choice.batch_size,
            power_limit_w=price.power_limit_w,
            why=started.choice.why,
            cost=self._spec.cost(ended.energy_j, ended.time_s, workload.max_power_w),
            **vars(ended),
        )

    def _chance(self, started: StartedTrial) -> float:
        """Draw uniformly from 0 to 1, once for each trial."""
        return float(np.random.default_rng([self._spec.random_seed(), started.number, 5]).random())


def run(
    price: Price, target_epoch: float, max_epochs: int, cost_bound: float, *, profiling: bool
) -> Run:
    """Train until the target, the last epoch before the bound, or the last epoch.

    Args:
        price: What an epoch costs.
        target_epoch: The epoch in which this run would reach the target; infinite: never.
        max_epochs: The last epoch.
        cost_bound: Cost in joules that no epoch may cross; infinite: no bound.
        profiling: Whether the first epoch tries all power limits. For the bound, it counts as any
            other epoch.

    Source: `_run_job` of the simulator published with Zeus (NSDI 2023).
    """
    last = max_epochs
    if math.isfinite(cost_bound):
        last = int(min(cost_bound // price.epoch_cost, max_epochs))
    result: Result = "early_stopped" if last < max_epochs else "not_converged"
    epochs = last
    if target_epoch <= last:
        result, epochs = "converged", int(target_epoch)
    return Run(result, epochs, *_time_and_energy(price, epochs, profiling=profiling))


def _time_and_energy(price: Price, epochs: int, *, profiling: bool) -> tuple[float, float]:
    """Seconds and joules of a run's first epochs."""
    if not (profiling and epochs):
        return epochs * price.epoch.time_s, epochs * price.epoch.energy_j
    return (
        price.profiling.time_s + (epochs - 1) * price.epoch.time_s,
        price.profiling.energy_j + (epochs - 1) * price.epoch.energy_j,
    )
