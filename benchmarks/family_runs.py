"""Replays of the wide family of synthetic workloads, and what they say about a policy.

The excess is the cost over that of always choosing the best batch size, minus one; its runs, too,
are stopped, at `beta_knob` times the median or later, where that is cheapest. What a run costs by
the luck of its draw is taken out: the mean stays the same, and fewer replays suffice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from family import CHANGING, case
from rich import box
from rich.table import Column, Table
from zeus_service.bandit.policy import Choice, Observation
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec
from zeus_service.simulation.experiment import Experiment, tally
from zeus_service.simulation.replay import replay
from zeus_service.simulation.results import EARLY
from zeus_service.simulation.simulated_run import SimulatedTrial, TrialRunner
from zeus_service.simulation.workload import Workload

LAST = 50
STUCK = 0.03
"""A job is stuck if its last runs are expected to cost so much more than the best."""
LONG = 500
"""Recurrences from which on a job can be stuck."""
CALIBRATED_AT = (1, 3, 10, 30, 100)


@dataclass(frozen=True)
class Replayed:
    """What a policy made of a workload.

    Args:
        excess: Over all recurrences; None if every batch size has failed.
        early: Over the first `EARLY`.
        last: Expected cost of the last batch sizes over that of the best one, minus one; None if
            the job is not `LONG`.
        within: For each of `CALIBRATED_AT`, the numbers of batch sizes tried by then, and of those
            whose true mean is within two standard deviations of the expected one.
    """

    kind: str
    policy: str
    excess: float | None
    early: float | None
    last: float | None
    within: tuple[tuple[int, int], ...]


class Outlays:
    """What it takes to reach the target with each batch size of a workload, in joules.

    Attributes:
        totals: The expected cost if runs are stopped at that epoch, with retries.
        of_success: That of a run that reaches the target before it is stopped.
    """

    def __init__(self, workload: Workload, spec: JobSpec) -> None:
        self.totals: dict[int, float] = {}
        self.of_success: dict[int, float] = {}
        self._epochs: dict[int, tuple[float, float, float]] = {}
        for size, setting in workload.settings.items():
            epoch_cost = setting.price(spec.eta_knob, workload.max_power_w).epoch_cost
            draws = np.sort(setting.target_epochs)
            successes = draws[draws <= workload.max_epochs]
            if not len(successes) or setting.out_of_memory >= 1:
                self.totals[size] = self.of_success[size] = math.inf
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
            self.of_success[size] = float(draws[: reached[best]].mean()) * epoch_cost

    def luck(self, batch_size: int, target_epoch: float) -> float:
        """By how much a run is dearer than expected because it takes so many epochs."""
        if batch_size not in self._epochs:
            return 0.0
        stop, expected, epoch_cost = self._epochs[batch_size]
        epochs = target_epoch if target_epoch <= stop else stop + expected
        return (epochs - expected) * epoch_cost


def replayed(kind: str, seed: int, policy: str) -> Replayed:
    """Replay a workload of the family."""
    made = case(kind, seed)
    workload = made.workload
    spec = workload.spec(policy=policy, seed=seed)
    experiment = Experiment(workload, spec, made.recurrences)
    trials = replay(workload, spec, made.recurrences)
    if tally(experiment, trials).none_left:
        return Replayed(kind, policy, None, None, None, ())
    ratios = np.array(experiment.ratios)
    phases = {id(phase): Outlays(phase, spec) for phase in workload.phases or (workload,)}
    phase_of = [phases[id(workload.at(recurrence))] for recurrence in range(len(ratios))]
    oracle = np.array([min(phase.totals.values()) for phase in phase_of]) * ratios
    spent, last = np.zeros(len(ratios)), np.zeros(len(ratios))
    runner = TrialRunner(spec)
    for trial in sorted(trials, key=lambda each: each.number):
        phase, at = phase_of[trial.recurrence], trial.recurrence
        targets = workload.at(at).settings[trial.batch_size].target_epochs
        draw, _ = runner.draw(trial.batch_size, targets)
        luck = 0.0 if trial.result == "out_of_memory" else phase.luck(trial.batch_size, draw)
        spent[at] += trial.cost - luck * ratios[at]
        last[at] = phase.totals[trial.batch_size] * ratios[at] / oracle[at] - 1
    early = slice(0, EARLY)
    return Replayed(
        kind,
        policy,
        float(spent.sum() / oracle.sum() - 1),
        float(spent[early].sum() / oracle[early].sum() - 1),
        float(last[-LAST:].mean()) if len(ratios) >= LONG else None,
        () if kind in CHANGING else calibration(workload, spec, trials),
    )


def calibration(
    workload: Workload, spec: JobSpec, trials: Sequence[SimulatedTrial]
) -> tuple[tuple[int, int], ...]:
    """Compare the costs that the policy expects with the true ones; see `Replayed.within`."""
    policy, outlays = policy_of(spec), Outlays(workload, spec)
    state, result = policy.initial_state(spec), []
    converged: set[int] = set()
    for number, trial in enumerate(trials[: CALIBRATED_AT[-1]], 1):
        choice = Choice(trial.batch_size, trial.why)
        state = policy.begin(spec, state, choice, workload.hardware)
        observation = Observation(choice, trial.result, trial.cost, trial.epochs, workload.hardware)
        state = policy.observe(spec, state, observation)
        if trial.result == "converged":
            converged.add(trial.batch_size)
        if number in CALIBRATED_AT:
            errors = [
                abs(arm.mean - outlays.of_success[arm.batch_size]) / arm.spread
                for arm in policy.describe(spec, state, workload.hardware)
                if arm.batch_size in converged and arm.mean is not None and arm.spread
            ]
            result.append((len(errors), sum(error < 2 for error in errors)))
    return tuple(result)


def family_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    """The mean excess of each policy on each kind of workload, and how many jobs are stuck."""
    table = Table(
        "kind, policy",
        *(Column(name, justify="right") for name in ("all", "first 30", "stuck", "all failed")),
        box=box.SIMPLE_HEAD,
    )
    kinds = list(dict.fromkeys(result.kind for result in results))
    rows = {kind: [kind] for kind in kinds}
    for name, those in {**rows, f"mean of {len(kinds)} kinds": kinds}.items():
        table.add_row(name)
        for policy in policies:
            mine = [result for result in results if result.policy == policy]
            spans = (
                statistics.fmean(mean_excess(mine, kind, early=early) for kind in those)
                for early in (False, True)
            )
            of_kinds = [result for result in mine if result.kind in those]
            stuck, long = stuck_of(of_kinds)
            table.add_row(
                f"  {policy}",
                *(f"{span:.2%}" for span in spans),
                f"{stuck} of {long}",
                f"{sum(result.excess is None for result in of_kinds)} of {len(of_kinds)}",
            )
    return table


def mean_excess(results: Sequence[Replayed], kind: str, *, early: bool) -> float:
    """The mean over the jobs of a kind that did not end because every batch size had failed."""
    values = [each.early if early else each.excess for each in results if each.kind == kind]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else math.nan


def stuck_of(results: Sequence[Replayed]) -> tuple[int, int]:
    """The number of jobs that are stuck, and of those that are long enough for that."""
    last = [each.last for each in results if each.last is not None]
    return sum(each > STUCK for each in last), len(last)


def not_stuck(results: Sequence[Replayed], policy: str) -> tuple[bool, str]:
    """Check for at most 1 % of stuck jobs."""
    stuck, long = stuck_of([each for each in results if each.policy == policy])
    return stuck <= 0.01 * long, f"{policy}: {stuck} of {long} long jobs are stuck (at most 1 %)"


def worst_kind(results: Sequence[Replayed], policy: str, other: str) -> tuple[bool, str]:
    """Check for at most a point more on every kind."""
    mine, theirs = ([each for each in results if each.policy == p] for p in (policy, other))
    points = {
        kind: mean_excess(mine, kind, early=False) - mean_excess(theirs, kind, early=False)
        for kind in dict.fromkeys(each.kind for each in mine)
    }
    known = {kind: value for kind, value in points.items() if math.isfinite(value)}
    worst = max(known, key=lambda kind: known[kind])
    return (
        known[worst] <= 0.01,
        f"{policy}: {known[worst]:+.2%} against {other} on its worst kind, {worst} (at most +1 %)",
    )


def calibration_table(results: Sequence[Replayed], policies: Sequence[str]) -> Table:
    """The share of tried batch sizes whose true mean is within two standard deviations."""
    names = [f"after {count}" for count in CALIBRATED_AT]
    table = Table("policy", *(Column(name, justify="right") for name in names), box=box.SIMPLE_HEAD)
    for policy in policies:
        cells = []
        for index in range(len(CALIBRATED_AT)):
            pairs = [
                each.within[index]
                for each in results
                if each.policy == policy and len(each.within) > index
            ]
            tried, within = (sum(numbers) for numbers in zip(*pairs, strict=True))
            cells.append(f"{within / tried:.1%}" if tried else "")
        table.add_row(policy, *cells)
    return table
