"""What happened at each recurrence, over many replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.machine import Trial
from zeus_service.simulation.summary import oracle_costs

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """All replays of one workload with one policy.

    Args:
        batch_sizes: Those of the job, ascending.
        cost: Over the oracle's; shape (replays, recurrences), nan after a replay's last one.
        regret: The cost above the oracle's so far, in runs of the best batch size; same shape.
        chosen: The share of replays whose first try had a batch size; shape
            (batch sizes, recurrences).
    """

    workload: str
    gpu: str
    policy: str
    batch_sizes: list[int]
    cost: Floats
    regret: Floats
    chosen: Floats


def series(replays: Sequence[tuple[Experiment, Sequence[Trial]]]) -> list[Series]:
    """One series for each workload, GPU and policy, in the order in which they first appear."""
    groups: dict[tuple[str, str, str], list[tuple[Experiment, Sequence[Trial]]]] = {}
    for experiment, trials in replays:
        key = (experiment.workload.name, experiment.workload.gpu, experiment.spec.policy or "")
        groups.setdefault(key, []).append((experiment, trials))
    return [_series(*key, group) for key, group in groups.items()]


def _series(
    workload: str,
    gpu: str,
    policy: str,
    replays: Sequence[tuple[Experiment, Sequence[Trial]]],
) -> Series:
    batch_sizes = replays[0][0].spec.batch_sizes
    length = max(experiment.recurrences for experiment, _ in replays)
    cost = np.full((len(replays), length), np.nan)
    chosen = np.zeros((len(batch_sizes), length))
    for index, (experiment, trials) in enumerate(replays):
        spent = np.zeros(experiment.recurrences)
        tried: set[int] = set()
        for trial in sorted(trials, key=lambda trial: trial.number):
            spent[trial.recurrence] += trial.cost
            if trial.recurrence not in tried:
                tried.add(trial.recurrence)
                chosen[batch_sizes.index(trial.batch_size), trial.recurrence] += 1
        cost[index, : len(spent)] = spent / np.array(oracle_costs(experiment))
    present = np.count_nonzero(~np.isnan(cost), axis=0)
    return Series(
        workload, gpu, policy, batch_sizes, cost, np.cumsum(cost - 1, axis=1), chosen / present
    )
