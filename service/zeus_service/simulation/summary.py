"""The sums of a replay, and their means over replays: cost over the best, energy, time, tries."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from zeus_service.simulation.experiment import Experiment, Key
from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.simulated_run import SimulatedTrial
from zeus_service.simulation.workload import Epoch

EARLY = 30
"""Recurrences that count as the first ones."""


@dataclass(frozen=True)
class Tally:
    """The sums of one replay: costs and energies in joules, times in seconds.

    Args:
        oracle: The expected cost of always choosing the best batch size.
        early_cost: Cost of the first `EARLY` recurrences; `early_oracle` is the oracle's for them.
        default_energy_j: Energy expected with the default batch size at the largest power limit;
            `default_time_s` is the time.
        tries_wasted: Trials that failed.
        cost_wasted: Their cost.
        given_up: Recurrences that never reached the target.
        none_left: Whether the policy had no batch size left for one of these.
        final: Batch sizes of the last ten recurrences.
    """

    key: Key
    recurrences: int
    cost: float
    oracle: float
    early_cost: float
    early_oracle: float
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
    oracle, default = zip(*expectations(experiment), strict=True)
    failed = [trial for trial in trials if trial.verdict != "converged"]
    tries = Counter(trial.recurrence for trial in trials)
    reached = {t.recurrence: t.batch_size for t in trials if t.verdict == "converged"}
    return Tally(
        key=experiment.key,
        recurrences=len(oracle),
        cost=math.fsum(trial.cost for trial in trials),
        oracle=math.fsum(oracle),
        early_cost=math.fsum(trial.cost for trial in trials if trial.recurrence < EARLY),
        early_oracle=math.fsum(oracle[:EARLY]),
        energy_j=math.fsum(trial.energy_j for trial in trials),
        default_energy_j=math.fsum(run.energy_j for run in default),
        time_s=math.fsum(trial.time_s for trial in trials),
        default_time_s=math.fsum(run.time_s for run in default),
        tries_wasted=len(failed),
        cost_wasted=math.fsum(trial.cost for trial in failed),
        given_up=len(oracle) - len(reached),
        none_left=any(
            tries[recurrence] < MAX_TRIES
            for recurrence in range(len(oracle))
            if recurrence not in reached
        ),
        final=tuple(reached[recurrence] for recurrence in sorted(reached)[-10:]),
    )


def expectations(experiment: Experiment) -> list[tuple[float, Epoch]]:
    """What each recurrence is expected to take.

    Returns:
        For each recurrence, the cost in joules with the best batch size, and the time and energy
        with the default one at the largest power limit.
    """
    workload, eta_knob = experiment.workload, experiment.spec.eta_knob
    expected = {
        id(phase): (
            phase.expected_cost(phase.oracle(eta_knob), eta_knob),
            phase.default_at_full_power(),
        )
        for phase in workload.phases or (workload,)
    }
    phases = [expected[id(workload.at(index))] for index in range(len(experiment.ratios))]
    return [
        (oracle * ratio, default.times(ratio))
        for (oracle, default), ratio in zip(phases, experiment.ratios, strict=True)
    ]


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
        recurrences=sum(each.recurrences for each in tallies),
        cost=ratio((each.cost, each.oracle) for each in whole),
        early_cost=ratio((each.early_cost, each.early_oracle) for each in whole),
        energy=ratio((each.energy_j, each.default_energy_j) for each in whole),
        time=ratio((each.time_s, each.default_time_s) for each in whole),
        tries_wasted=fmean(each.tries_wasted for each in tallies),
        cost_wasted=sum(each.cost_wasted for each in tallies) / sum(each.cost for each in tallies),
        given_up=fmean(each.given_up for each in whole) if whole else 0.0,
        final=final[0][0] if final else None,
        final_share=final[0][1] / sum(len(each.final) for each in tallies) if final else 0.0,
    )
