"""What a job has spent, and what its default batch size would have: a fold of its trials' ends.

**Definition.** A recurrence is its failed trials and the one that converged. It has saved what one
run of the job's default batch size at the GPUs' default power limit is expected to spend, less what
it has spent. So after `n` runs that converged a job has saved

    saved = n * expected - spent

where `spent` is of all trials that have ended. It is negative while a job explores. A run that
converged without a measurement, because its meter was dead, does not count: neither as a recurrence
nor with what it has spent. What failed trials of the default would spend is not in `expected`. What
a run spent between its checkpoint and an interruption is not in `spent` if it was resumed.

**Drift.** Surprises, how far log costs are from the mean of their batch size, are added up in both
directions. When a sum exceeds `DRIFT_THRESHOLD`, the job has changed, and a new *era* begins
with the next run that converges. Each era is compared with its own expectation, see `expected.py`.
An era more costs little, but a change that is not found biases the expectation: so the allowance is
small. Source: Page, "Continuous inspection schemes", Biometrika 41, 1954.

**Hardware.** Costs on different hardware are never compared: a job has a ledger and an open era for
each, and each era belongs to one. A job's savings are the sum over its eras.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Protocol

from zeus_service.bandit.outcomes import FINAL, Outcome
from zeus_service.bandit.policy import reproducible
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.savings.expected import (
    Arm,
    Expected,
    Ledger,
    expectation,
    noise,
    normal_score,
    pooled,
    truncation,
)
from zeus_service.savings.power import Profiles

DRIFT_ALLOWANCE = 0.25
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 8.0
LARGEST_SURPRISE = 4.0
"""Surprises are clipped here, so that one alone does not exceed the threshold."""
Ledgers = Mapping[str, Ledger]
"""A job's ledgers by the keys of their hardware."""

LEAST_AMOUNT = 1e-9
"""Joules, seconds or cost: a run with less of one was not measured."""


class EndedTrial(Protocol):
    """A trial that has ended: the cost is in joules, and an unknown power limit is None."""

    batch_size: int
    hardware: Hardware
    outcome: Outcome
    energy_j: float
    time_s: float
    cost: float
    power_limit_w: float | None
    default_power_limit_w: float | None


@dataclass(frozen=True)
class Era:
    """Trials between two changes of a job, and what their recurrences are compared with.

    Args:
        number: Counted from 1, over all hardware.
        hardware: What its trials trained on.
        recurrences: Trials that converged.
        energy_j: Joules spent by all trials that ended.
        time_s: Seconds spent by them.
        cost: Their cost in joules.
        expected: What one run of the default is expected to spend; None if it is unknown.
    """

    number: int
    hardware: Hardware
    recurrences: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    cost: float = 0.0
    expected: Expected | None = None


def new_ledger() -> Ledger:
    """The ledger of a job that has had no trial on some hardware."""
    return {
        "arms": {},  # {batch size: its runs in this era, see `_new_arm`}
        # Of earlier eras, the squares of the deviations of log energy, log time and log cost from
        # the mean of their batch size, and the degrees of freedom of these squares.
        "squares": [0.0] * 3,
        "degrees": 0.0,
        "cusum": [0.0, 0.0],  # cumulative sums of surprises: [dearer, cheaper]
        "before": None,  # the era before, see `following`
        "default_limit_w": None,  # the GPUs' default power limit
    }


def record(
    spec: JobSpec,
    ledgers: Ledgers,
    eras: Sequence[Era],
    trial: EndedTrial,
    profiles: Profiles,
) -> tuple[dict[str, Ledger], list[Era], int | None]:
    """Add a trial that has ended to the ledger and the open era of its hardware.

    What is expected is computed again on all hardware, since each can depend on the others.

    Args:
        spec: The job.
        ledgers: Its ledgers before the end.
        eras: Its eras before the end, in the order of their numbers.
        trial: The trial.
        profiles: The default's power profiles.

    Returns:
        The ledgers; the eras, which may be one more; and the number of the one that the trial
        counts in, or None if it counts in none.
    """
    measured = min(trial.energy_j, trial.time_s, trial.cost) >= LEAST_AMOUNT
    converged = trial.outcome == "converged"
    if converged and not measured:
        return dict(ledgers), list(eras), None
    key = trial.hardware.key
    ledger = ledgers.get(key) or new_ledger()
    latest = {each.hardware.key: each for each in eras}
    era = latest.get(key) or Era(len(eras) + 1, trial.hardware)
    if trial.outcome in FINAL and measured and trial.default_power_limit_w is not None:
        ledger = {**ledger, "default_limit_w": trial.default_power_limit_w}
    if converged:
        ledger, era = _with_run(ledger, era, trial, len(eras) + 1)
    elif trial.outcome == "early_stopped":
        ledger = _with_stopped_run(ledger, trial.batch_size)
    latest[key] = replace(_with_spending(era, trial), recurrences=era.recurrences + converged)
    ledgers = {**ledgers, key: ledger}
    after = {each.number: each for each in eras}
    for each in _with_expectations(spec, ledgers, latest, profiles):
        after[each.number] = each
    return ledgers, list(after.values()), era.number


def _with_expectations(
    spec: JobSpec,
    ledgers: Ledgers,
    latest: Mapping[str, Era],
    profiles: Profiles,
) -> Iterable[Era]:
    """The open eras with what is expected in them; first those that do not need the others."""
    default, found = str(spec.default_batch_size), dict(latest)
    known = [key for key, each in ledgers.items() if default in each["arms"] or each["before"]]
    for key in sorted(ledgers, key=lambda key: key not in known):
        ledger, hardware = ledgers[key], found[key].hardware
        elsewhere = []
        if key not in known:
            elsewhere = [following(ledgers[other], found[other]) for other in known]
        profile = profiles.get((hardware.device_model, hardware.num_devices), ())
        expected = expectation(spec, ledger, profile, elsewhere)
        found[key] = replace(found[key], expected=expected)
    return found.values()


def following(ledger: Ledger, era: Era) -> Ledger:
    """What an era that follows this one, which has an expectation, knows of it."""
    assert era.expected is not None, "the default has run, or an era before had an expectation"
    squares, degrees = pooled(ledger)
    return {
        "squares": squares,
        "degrees": degrees,
        "before": {
            "arms": ledger["arms"],
            "expected": asdict(era.expected),
            "default_limit_w": ledger["default_limit_w"],
        },
    }


def with_spending_of(era: Era, trials: Iterable[EndedTrial]) -> Era:
    """An era without a trial that is running again: with what these other trials in it have spent.

    They are added in the order in which they ended, as `record` did, so that both give the same sum
    to the last bit; to subtract would not. Recurrences stay: what converged never runs again.
    """
    return reduce(_with_spending, trials, replace(era, energy_j=0.0, time_s=0.0, cost=0.0))


def _with_spending(era: Era, trial: EndedTrial) -> Era:
    return replace(
        era,
        energy_j=era.energy_j + trial.energy_j,
        time_s=era.time_s + trial.time_s,
        cost=era.cost + trial.cost,
    )


def _new_arm(logs: list[float]) -> Arm:
    """A batch size before its first run, which has these logarithms."""
    return {
        "runs": 0,  # that converged; what follows is of these
        "logs": logs,  # means of log energy, log time and log cost
        "squares": [0.0] * 3,  # of their deviations
        "mean": [0.0, 0.0],  # energy and time
        "limit_w": None,  # mean power limit; None if it is unknown
        "stops": 0,  # runs that were stopped early
    }


def _with_run(ledger: Ledger, era: Era, trial: EndedTrial, number: int) -> tuple[Ledger, Era]:
    """Add a run that has converged to the moments of its batch size.

    If the job has changed, it is in a new era, of this number.
    """
    key, amounts = str(trial.batch_size), (trial.energy_j, trial.time_s)
    # Rounded, so that every processor finds the same eras.
    logs = [reproducible(math.log(each)) for each in (*amounts, trial.cost)]
    if arm := ledger["arms"].get(key):
        ledger = _with_surprise(ledger, _surprise(ledger, arm, logs[2]))
    if max(ledger["cusum"]) > DRIFT_THRESHOLD:
        ledger, era = _next_era(ledger, era, number)
    arm = ledger["arms"].get(key) or _new_arm(logs)
    before, runs = arm["runs"], arm["runs"] + 1
    steps = [log - mean for log, mean in zip(logs, arm["logs"], strict=True)]
    squares = zip(arm["squares"], steps, strict=True)
    means = zip(arm["mean"], amounts, strict=True)
    changed = {
        **arm,
        "runs": runs,
        "logs": [mean + step / runs for mean, step in zip(arm["logs"], steps, strict=True)],
        "squares": [square + step**2 * before / runs for square, step in squares],
        "mean": [mean + (amount - mean) / runs for mean, amount in means],
        "limit_w": _mean_limit(arm, trial.power_limit_w),
    }
    return {**ledger, "arms": {**ledger["arms"], key: changed}}, era


def _with_stopped_run(ledger: Ledger, batch_size: int) -> Ledger:
    """Count a run that was stopped early, if any of its batch size has converged."""
    key = str(batch_size)
    if key not in ledger["arms"]:
        return ledger
    arm = {**ledger["arms"][key], "stops": ledger["arms"][key]["stops"] + 1}
    ledger = {**ledger, "arms": {**ledger["arms"], key: arm}}
    return _with_surprise(ledger, reproducible(truncation(arm).above))


def _mean_limit(arm: Arm, limit_w: float | None) -> float | None:
    """With one more run; a run without a limit counts with the mean of the others."""
    mean_w: float | None = arm["limit_w"]
    if mean_w is None or limit_w is None:
        return limit_w if mean_w is None else mean_w
    return float(mean_w + (limit_w - mean_w) / (arm["runs"] + 1))


def _surprise(ledger: Ledger, arm: Arm, log_cost: float) -> float:
    """By how many standard deviations a run's log cost exceeds the mean of its batch size.

    While few runs say what a deviation is, the same excess is less of a surprise.
    """
    (*_, deviation), degrees = noise(ledger)
    mean = arm["logs"][2] + truncation(arm).below * deviation
    excess = (log_cost - mean) / (deviation * math.sqrt(1 + 1 / arm["runs"]))
    return normal_score(excess, degrees)


def _with_surprise(ledger: Ledger, surprise: float) -> Ledger:
    """Advance the cumulative sums by a run."""
    step = reproducible(min(max(surprise, -LARGEST_SURPRISE), LARGEST_SURPRISE))
    dearer, cheaper = ledger["cusum"]
    sums = [dearer + step - DRIFT_ALLOWANCE, cheaper - step - DRIFT_ALLOWANCE]
    return {**ledger, "cusum": [max(0.0, each) for each in sums]}


def _next_era(ledger: Ledger, era: Era, number: int) -> tuple[Ledger, Era]:
    """Open a new era; without an expectation in this one, only the sums begin again."""
    if era.expected is None:
        return {**ledger, "cusum": [0.0, 0.0]}, era
    kept = {"default_limit_w": ledger["default_limit_w"]}
    return {**new_ledger(), **following(ledger, era), **kept}, Era(number, era.hardware)
