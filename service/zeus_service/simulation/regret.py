"""Regret, cost and choices at each recurrence, over many replays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zeus_service.simulation.experiment import Experiment, Key
from zeus_service.simulation.simulated_run import SimulatedTrial
from zeus_service.simulation.summary import expectations

Floats = npt.NDArray[np.float64]
Replay = tuple[Experiment, Sequence[SimulatedTrial]]


@dataclass(frozen=True)
class Curves:
    """All replays of one workload with one policy.

    Args:
        batch_sizes: The job's, ascending.
        cost: Over the oracle's; (replays, recurrences), nan after a replay's last recurrence.
        regret: Sum of the costs above the oracle's, in runs of the best batch size; same shape.
        chosen: The share of replays whose first try had a batch size; (batch sizes, recurrences).
    """

    workload: str
    gpu: str
    policy: str
    batch_sizes: list[int]
    cost: Floats
    regret: Floats
    chosen: Floats


def curves(replays: Sequence[Replay]) -> list[Curves]:
    """The curves of each workload, GPU and policy, in the order in which they first appear."""
    groups: dict[Key, list[Replay]] = {}
    for replay in replays:
        groups.setdefault(replay[0].key, []).append(replay)
    return [_curves(*key, group) for key, group in groups.items()]


def _curves(workload: str, gpu: str, policy: str, replays: Sequence[Replay]) -> Curves:
    batch_sizes = replays[0][0].spec.batch_sizes
    length = max(len(experiment.ratios) for experiment, _ in replays)
    cost = np.full((len(replays), length), np.nan)
    chosen = np.zeros((len(batch_sizes), length))
    for index, (experiment, trials) in enumerate(replays):
        spent = np.zeros(len(experiment.ratios))
        first: dict[int, int] = {}
        for trial in sorted(trials, key=lambda trial: trial.number):
            spent[trial.recurrence] += trial.cost
            first.setdefault(trial.recurrence, trial.batch_size)
        for recurrence, batch_size in first.items():
            chosen[batch_sizes.index(batch_size), recurrence] += 1
        oracle = np.array([expected for expected, _ in expectations(experiment)])
        cost[index, : len(spent)] = spent / oracle
    present = np.count_nonzero(~np.isnan(cost), axis=0)
    regret = np.cumsum(cost - 1, axis=1)
    return Curves(workload, gpu, policy, batch_sizes, cost, regret, chosen / present)
