"""The sums of a replay, and their means over replays: cost over the best, energy, time, tries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from zeus_service.simulation.experiment import Experiment, Key
from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.simulated_run import SimulatedTrial

EARLY = 30
"""Recurrences that count as the first ones."""


@dataclass(frozen=True)
class Tally:
    """What one replay came to: costs and energies in joules, times in seconds.

    Args:
        costs: The cost of each recurrence, failed trials included.
        oracle_costs: The expected cost of each recurrence with the best batch size.
        first_tries: The batch size that each recurrence tried first; 0 if none was left.
        default_energy_j: Energy expected with the default batch size at the largest power limit;
            `default_time_s` is the time.
        tries_wasted: Trials that failed.
        cost_wasted: Their cost.
        given_up: Recurrences that never reached the target.
        none_left: Whether the policy had no batch size left for one of these.
        final: Batch sizes of the last ten recurrences.
    """

    key: Key
    batch_sizes: tuple[int, ...]
    costs: tuple[float, ...]
    oracle_costs: tuple[float, ...]
    first_tries: tuple[int, ...]
    energy_j: float
    default_energy_j: float
    time_s: float
    default_time_s: float
    tries_wasted: int
    cost_wasted: float
    given_up: int
    none_left: bool
    final: tuple[int, ...]


def tally(experiment: Experiment, trials: Sequence[SimulatedTrial]) -> Tally:
    """Add up the trials of a replay."""
    workload, ratios, eta_knob = experiment.workload, experiment.ratios, experiment.spec.eta_knob
    expected = {
        id(phase): (
            phase.expected_cost(phase.oracle(eta_knob), eta_knob),
            phase.default_at_full_power(),
        )
        for phase in workload.phases or (workload,)
    }
    phases = [expected[id(workload.at(recurrence))] for recurrence in range(len(ratios))]
    costs, first_tries = [0.0] * len(ratios), [0] * len(ratios)
    for trial in sorted(trials, key=lambda trial: trial.number):
        costs[trial.recurrence] += trial.cost
        first_tries[trial.recurrence] = first_tries[trial.recurrence] or trial.batch_size
    failed = [trial for trial in trials if trial.verdict != "converged"]
    tries = Counter(trial.recurrence for trial in trials)
    reached = {t.recurrence: t.batch_size for t in trials if t.verdict == "converged"}
    missed = [recurrence for recurrence in range(len(ratios)) if recurrence not in reached]
    defaults = [default.times(ratio) for (_, default), ratio in zip(phases, ratios, strict=True)]
    return Tally(
        key=experiment.key,
        batch_sizes=tuple(experiment.spec.batch_sizes),
        costs=tuple(costs),
        oracle_costs=tuple(cost * ratio for (cost, _), ratio in zip(phases, ratios, strict=True)),
        first_tries=tuple(first_tries),
        energy_j=math.fsum(trial.energy_j for trial in trials),
        default_energy_j=math.fsum(run.energy_j for run in defaults),
        time_s=math.fsum(trial.time_s for trial in trials),
        default_time_s=math.fsum(run.time_s for run in defaults),
        tries_wasted=len(failed),
        cost_wasted=math.fsum(trial.cost for trial in failed),
        given_up=len(missed),
        none_left=any(tries[recurrence] < MAX_TRIES for recurrence in missed),
        final=tuple(reached[recurrence] for recurrence in sorted(reached)[-10:]),
    )


def spent_over_oracle(tallies: Iterable[Tally], recurrences: int | None = None) -> Ratio:
    """The cost of replays over the oracle's, in their first recurrences or in all."""
    return ratio(
        (math.fsum(each.costs[:recurrences]), math.fsum(each.oracle_costs[:recurrences]))
        for each in tallies
    )


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums over replays, and its standard error."""

    value: float
    error: float


def ratio(pairs: Iterable[tuple[float, float]]) -> Ratio:
    """The ratio of the sum of the first numbers to the sum of the second ones.

    The standard error is a ratio estimate's (Cochran, Sampling Techniques, 1977, chapter 6);
    for replays of the same length, it is the standard error of the mean.
    """
    known = [(top, bottom) for top, bottom in pairs if 0 < bottom < math.inf]
    if not known:
        return Ratio(math.nan, math.nan)
    bottoms = math.fsum(bottom for _, bottom in known)
    value = math.fsum(top for top, _ in known) / bottoms
    if len(known) < 2:
        return Ratio(value, math.nan)
    squares = math.fsum((top - value * bottom) ** 2 for top, bottom in known)
    error = math.sqrt(squares * len(known) / (len(known) - 1)) / bottoms
    return Ratio(value, error)


@dataclass(frozen=True)
class Summary:
    """All replays of one workload with one policy.

    Args:
        none_left: The number of replays in which the policy had no batch size left to try. The
            ratios and `given_up` leave these out.
        cost: Over the oracle's; nan without any other replay.
        early_cost: The same for the first `EARLY` recurrences.
        energy: Relative to the default batch size at the largest power limit; so is `time`.
        tries_wasted: Mean number of failed trials in a replay.
        cost_wasted: Their share of the cost.
        given_up: Mean number of recurrences in a replay that never reached the target.
        final: The batch size most often chosen in the last ten recurrences.
        final_share: The share of those recurrences that chose it.
    """

    workload: str
    gpu: str
    policy: str
    replays: int
    none_left: int
    recurrences: int
    cost: Ratio
    early_cost: Ratio
    energy: Ratio
    time: Ratio
    tries_wasted: float
    cost_wasted: float
    given_up: float
    final: int | None
    final_share: float


def summarize(tallies: Sequence[Tally]) -> list[Summary]:
    """One summary for each workload, GPU and policy, in the order in which they first appear."""
    groups: dict[Key, list[Tally]] = {}
    for each in tallies:
        groups.setdefault(each.key, []).append(each)
    return [_summary(*key, group) for key, group in groups.items()]


def _summary(workload: str, gpu: str, policy: str, tallies: list[Tally]) -> Summary:
    whole = [each for each in tallies if not each.none_left]
    final = Counter(size for each in tallies for size in each.final).most_common(1)
    return Summary(
        workload=workload,
        gpu=gpu,
        policy=policy,
        replays=len(tallies),
        none_left=len(tallies) - len(whole),
        recurrences=sum(len(each.costs) for each in tallies),
        cost=spent_over_oracle(whole),
        early_cost=spent_over_oracle(whole, EARLY),
        energy=ratio((each.energy_j, each.default_energy_j) for each in whole),
        time=ratio((each.time_s, each.default_time_s) for each in whole),
        tries_wasted=fmean(each.tries_wasted for each in tallies),
        cost_wasted=sum(each.cost_wasted for each in tallies)
        / sum(math.fsum(each.costs) for each in tallies),
        given_up=fmean(each.given_up for each in whole) if whole else 0.0,
        final=final[0][0] if final else None,
        final_share=final[0][1] / sum(len(each.final) for each in tallies) if final else 0.0,
    )
