"""What replays cost over always choosing the best batch size, without the luck of their draws.

The runs of the best batch size, too, are stopped, at `beta_knob` times the median or later, where
that is cheapest. What a run costs by the luck of its draw is taken out: the mean stays the same,
and fewer replays suffice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Column, Table
from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation.experiment import Experiment, tally
from zeus_service.simulation.replay import replay
from zeus_service.simulation.result_tables import EARLY
from zeus_service.simulation.simulated_run import SimulatedTrial, TrialRunner
from zeus_service.simulation.workload import Workload

Floats = NDArray[np.float64]


class Outlays:
    """What it takes to reach the target with each batch size of a workload, in joules.

    Attributes:
        totals: The expected cost if runs are stopped at that epoch, with retries.
    """

    def __init__(self, workload: Workload, spec: JobSpec) -> None:
        self.totals: dict[int, float] = {}
        self._epochs: dict[int, tuple[float, float, float]] = {}
        for size, setting in workload.settings.items():
            epoch_cost = setting.price(spec.eta_knob, workload.max_power_w).epoch_cost
            draws = np.sort(setting.target_epochs)
            successes = draws[draws <= workload.max_epochs]
            if not len(successes) or setting.out_of_memory >= 1:
                self.totals[size] = math.inf
                continue
            bound = (spec.beta_knob or math.inf) * float(np.median(successes))
            stops = np.array([min(bound, workload.max_epochs), *successes[successes > bound]])
            reached = np.searchsorted(draws, stops, side="right")
            epochs = np.minimum(draws, stops[:, None]).sum(axis=1) / reached
            best = int(np.argmin(epochs))
            odds = setting.out_of_memory / (1 - setting.out_of_memory)
            tenth = float(np.minimum(draws, workload.max_epochs).mean()) / 10
            self._epochs[size] = float(stops[best]), float(epochs[best]), epoch_cost
            self.totals[size] = (float(epochs[best]) + odds * tenth) * epoch_cost

    def luck(self, batch_size: int, target_epoch: float) -> float:
        """By how much a run is dearer than expected because it takes so many epochs."""
        if batch_size not in self._epochs:
            return 0.0
        stop, expected, epoch_cost = self._epochs[batch_size]
        epochs = target_epoch if target_epoch <= stop else stop + expected
        return (epochs - expected) * epoch_cost


@dataclass(frozen=True)
class Costs:
    """The costs of a replay in joules, one number for each recurrence.

    Args:
        spent: The cost of all tries, without luck.
        oracle: The expected cost with the best batch size.
        chosen: The expected cost with the batch size of the last try.
        none_left: Whether the policy had no batch size left to try in any recurrence.
    """

    spent: Floats
    oracle: Floats
    chosen: Floats
    none_left: bool

    def excess(self, begin: int = 0, end: int | None = None) -> float:
        """The excess over the recurrences from `begin` to before `end`."""
        return float(self.spent[begin:end].sum() / self.oracle[begin:end].sum() - 1)


def costs_of(experiment: Experiment, trials: Sequence[SimulatedTrial]) -> Costs:
    """Add up the trials of a replay."""
    workload, spec, ratios = experiment.workload, experiment.spec, np.array(experiment.ratios)
    phases = {id(phase): Outlays(phase, spec) for phase in workload.phases or (workload,)}
    phase_of = [phases[id(workload.at(recurrence))] for recurrence in range(len(ratios))]
    oracle = np.array([min(phase.totals.values()) for phase in phase_of]) * ratios
    spent, chosen = np.zeros(len(ratios)), np.zeros(len(ratios))
    runner = TrialRunner(spec)
    for trial in sorted(trials, key=lambda each: each.number):
        phase, at = phase_of[trial.recurrence], trial.recurrence
        targets = workload.at(at).settings[trial.batch_size].target_epochs
        draw, _ = runner.draw(trial.batch_size, targets)
        luck = 0.0 if trial.result == "out_of_memory" else phase.luck(trial.batch_size, draw)
        spent[at] += trial.cost - luck * ratios[at]
        chosen[at] = phase.totals[trial.batch_size] * ratios[at]
    return Costs(spent, oracle, chosen, tally(experiment, trials).none_left)


class Case(NamedTuple):
    """A replay whose excess belongs to a row of a table."""

    row: str
    experiment: Experiment


def costs_of_case(case: Case) -> Costs:
    """Replay a case."""
    each = case.experiment
    return costs_of(each, replay(each.workload, each.spec, each.submissions))


def costs_of_cases(cases: Sequence[Case], jobs: int) -> Iterator[Costs]:
    """Replay cases in `jobs` processes; yield their costs in order."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(costs_of_case, cases, chunksize=4)


Rows = Mapping[str, Mapping[str, Sequence[Costs]]]
"""The costs of the replays of each row and each policy."""


def by_row(cases: Sequence[Case], costs: Iterable[Costs]) -> Rows:
    """Group costs by row and policy."""
    rows: dict[str, dict[str, list[Costs]]] = {}
    for (row, experiment), each in zip(cases, costs, strict=True):
        policies = rows.setdefault(row, {})
        policies.setdefault(experiment.spec.policy or "", []).append(each)
    return rows


def mean_excess(costs: Sequence[Costs], end: int | None = None) -> float:
    """The mean over the replays in which a batch size was always left; NaN if there is none."""
    known = [each.excess(0, end) for each in costs if not each.none_left]
    return statistics.fmean(known) if known else math.nan


def excess_table(heading: str, rows: Rows, *, mean_of: str) -> Table:
    """The mean excess of each policy in each row, over all recurrences and the first 30.

    Args:
        heading: Of the rows.
        rows: What to print.
        mean_of: What the rows are, in the plural, for the last one, which is their mean.
    """
    policies = list(next(iter(rows.values())))
    table = Table(Column(heading, no_wrap=True), box=box.SIMPLE_HEAD)
    for policy in policies:
        table.add_column(policy, justify="right")
        table.add_column(f"first {EARLY}", justify="right")
    values = []
    for name, of_policies in rows.items():
        row = [mean_excess(of_policies[p], end) for p in policies for end in (None, EARLY)]
        gave_up = sum(each.none_left for costs in of_policies.values() for each in costs)
        table.add_row(
            f"{name} (without {gave_up} that gave up)" if gave_up else name,
            *(f"{value:.2%}" for value in row),
        )
        values.append(row)
    means = np.mean(values, axis=0)
    table.add_section()
    table.add_row(f"mean of {len(rows)} {mean_of}", *(f"{value:.2%}" for value in means))
    return table
