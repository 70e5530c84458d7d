"""What a job has spent, and what its default batch size would have: a fold of the job's events.

**Definition.** A recurrence is its failed tries and the run that converged. It has saved what one
run of the job's default batch size at the GPU's default power limit is expected to spend, less what
it has spent: energy in joules, time in seconds, and cost. So a job has saved, after `n` runs that
converged,

    saved = n * expected - spent

where `spent` is of all trials that have ended, failed, lost and interrupted ones included. It is
negative while a job explores. What failed tries of the default would spend is not added to
`expected`, which makes it too low, if anything.

**Drift.** Surprises, deviations of log costs from the mean of their batch size, are added up in
both directions. When a sum exceeds `DRIFT_THRESHOLD`, the job has changed, and a new *era* begins
with the next run that converges: each era is compared with its own expectation, see
`expectation.py`. An era more costs little, but a change that was not found biases the expectation:
so the allowance is small. Source: Page, "Continuous inspection schemes", Biometrika 41, 1954.

Estimates have an `error`, half the width of their 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat

from zeus_service.bandit.fold import Event
from zeus_service.bandit.policy import State, reproducible
from zeus_service.bandit.spec import JobSpec, PositiveCount
from zeus_service.messages import PowerProfile
from zeus_service.savings import lognormal
from zeus_service.savings import power as limits
from zeus_service.savings.expected import (
    PRIOR_DEGREES,
    PRIOR_NOISE,
    Amounts,
    Arm,
    Expectation,
    Ledger,
    Log,
    Positive,
    arms_fitted,
    as_amounts,
    at_default_limit,
    expectation,
    fitted,
)
from zeus_service.savings.lognormal import Fit

QUANTITIES = ("energy_j", "time_s", "cost")
"""The names of `Amounts`."""

DRIFT_ALLOWANCE = 0.25
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 8.0
LARGEST_SURPRISE = 4.0
"""Surprises are clipped here, so that one alone does not exceed the threshold."""
MAX_ERAS = 16
"""Earlier eras are merged."""
MAX_STOP_GROUPS = 8
"""Largest number of groups of a batch size's runs that were stopped early, by where."""
SAME_STOP = 0.01
"""Log costs that differ by less are merged."""
LEAST_AMOUNT = 1e-9
"""Of joules, seconds and cost: a run that spent less of one is left out of the expectation."""
_NO_RUNS = Arm(0, 0.0, 0.0, 0.0)
"""Of a batch size that `arms` of `new_ledger` lacks."""

_Numbers = tuple[FiniteFloat, FiniteFloat, FiniteFloat]


class _Default(BaseModel):
    count: int
    mean: _Numbers
    cost: FiniteFloat | None = None


class _Era(BaseModel):
    last_trial: int
    recurrences: int
    spent: _Numbers
    expected: _Numbers
    error: _Numbers
    carried: bool = False


class _Stored(BaseModel):
    """What a ledger consists of; see `new_ledger`. Early versions lack what has a default."""

    recurrences: int
    spent: _Numbers
    default: _Default
    arms: dict[str, Arm]
    stops: dict[str, list[tuple[PositiveCount, Log]]] = {}
    before: dict[str, Arm] = {}
    squares: _Numbers
    degrees: Annotated[FiniteFloat, Field(ge=0)]
    cusum: tuple[FiniteFloat, FiniteFloat]
    past: list[_Era]
    profile: list[tuple[Positive, Positive, Positive]] = []
    limits: tuple[Positive, Positive] | None = None


@dataclass(frozen=True)
class Saved:
    """What a job has saved since it was registered; negative where it has spent more."""

    mean: Amounts
    error: Amounts


def new_ledger() -> Ledger:
    """The ledger of a job that has had no trial."""
    return {
        "recurrences": 0,  # of this era, as all but `squares` and what follows
        "spent": [0.0] * 3,
        # Its runs that converged, the mean of what each would have spent at the default limit, and
        # their mean cost as it was.
        "default": {"count": 0, "mean": [0.0] * 3, "cost": 0.0},
        "arms": {},  # {batch size: what `Arm` has}
        # {batch size: [[number of runs, mean log cost at which they were stopped early], ...]}
        "stops": {},
        "before": {},  # the arms of the era before
        "squares": [0.0] * 3,  # of deviations from these means; of all eras
        "degrees": 0,  # of freedom of these squares
        "cusum": [0.0, 0.0],  # cumulative sums of surprises: [dearer, cheaper]
        "past": [],  # eras before: their end, recurrences, spent, and what was expected
        "profile": [],  # the default's: [watts, joules, seconds] of a batch, by ascending limit
        "limits": None,  # watts: of the latest run in `arms`, and the GPU's default
    }


def checked(stored: object) -> Ledger:
    """Return a ledger that was stored; raise ValueError if it is none.

    In one that lacks `stops`, a run that was stopped early counts as one that converged, with what
    it was expected to spend when it was stopped. Power limits are unknown if it lacks those of each
    batch size; see `lacks_profile`, too.
    """
    found = _Stored.model_validate(stored)
    if found.before and not found.past:
        raise ValueError("there are batch sizes of an era before, but no such era")
    if found.default.cost is None:
        found.default.cost = found.default.mean[2]
    if found.default.count and found.default.cost < LEAST_AMOUNT:
        raise ValueError("the default has converged without a cost")
    return found.model_dump(mode="json")


def lacks_profile(stored: object) -> bool:
    """Whether a ledger was stored before reports carried power limits, without the profile."""
    return isinstance(stored, dict) and "power" in stored


def applied(spec: JobSpec, ledger: Ledger, state: State, event: Event) -> Ledger:
    """The ledger after one more event.

    Args:
        spec: The job.
        ledger: Before the event.
        state: The policy's state before the event.
        event: It has what its trial has spent so far, except if it is a start.
    """
    if event.kind == "started":
        return ledger
    amounts = (event.energy_j, event.time_s, event.cost)
    if event.kind == "revived":  # its next end counts all that the trial has spent
        return {**ledger, "spent": _plus(ledger["spent"], amounts, -1.0)}
    if min(amounts) >= LEAST_AMOUNT:
        if event.outcome == "converged":
            ledger = _with_run(spec, ledger, state, event)
        elif event.outcome == "early_stopped":
            ledger = _with_stopped_run(ledger, event)
    return {
        **ledger,
        "spent": _plus(ledger["spent"], amounts),
        "recurrences": ledger["recurrences"] + (event.outcome == "converged"),
    }


def with_power_profile(spec: JobSpec, ledger: Ledger, profile: PowerProfile) -> Ledger:
    """The ledger with the measurements of a power profile, if it is the default batch size's."""
    if profile.batch_size != spec.default_batch_size or profile.device_model != spec.device_model:
        return ledger
    return {**ledger, "profile": limits.thinned(profile.points)}


def saved(ledger: Ledger, expected: Expectation | None) -> Saved | None:
    """What a job has saved over all eras; None if there is no expectation."""
    eras = [*ledger["past"], _era(ledger, 0, expected)] if expected else ledger["past"]
    if not eras:
        return None
    columns = range(3)
    mean = [sum(e["recurrences"] * e["expected"][i] - e["spent"][i] for e in eras) for i in columns]
    error = [_error(eras, i) for i in columns]
    return Saved(as_amounts(mean), as_amounts(error))


def _error(eras: Sequence[dict[str, Any]], quantity: int) -> float:
    """Of a sum over eras: independent, but for those whose expectation was carried over."""
    errors: list[float] = []
    for era in eras:
        error = era["recurrences"] * era["error"][quantity]
        if era.get("carried") and errors:
            error += errors.pop()
        errors.append(error)
    return math.hypot(*errors)


def recurrences(ledger: Ledger) -> int:
    """The number of runs that have converged, over all eras."""
    return int(sum(era["recurrences"] for era in (*ledger["past"], ledger)))


def spent(ledger: Ledger) -> Amounts:
    """What all trials that have ended have spent, over all eras."""
    eras = [era["spent"] for era in (*ledger["past"], ledger)]
    return as_amounts(map(sum, zip(*eras, strict=True)))


def expected_at(ledger: Ledger, trial_number: int, expected: Expectation) -> Expectation:
    """What was expected of a run of the default in the era of a trial."""
    for era in ledger["past"]:
        if trial_number <= era["last_trial"]:
            return Expectation(as_amounts(era["expected"]), as_amounts(era["error"]), "runs")
    return expected


def _with_run(spec: JobSpec, ledger: Ledger, state: State, event: Event) -> Ledger:
    """Add a run that has converged to what is known of its batch size."""
    key = str(event.choice.batch_size)
    amounts = (event.energy_j, event.time_s, event.cost)
    logs = [math.log(amount) for amount in amounts]
    cusum = _cusum(ledger, fitted(ledger)[0], key, logs[2])
    ledger = {**ledger, "limits": _limits(event), "cusum": cusum}
    if max(ledger["cusum"]) > DRIFT_THRESHOLD:
        ledger = _next_era(spec, ledger, state, event.trial_number)
    arm = Arm(*ledger["arms"].get(key, _NO_RUNS))
    runs = arm.runs + 1
    deviations = _plus(logs, arm.logs, -1.0)
    if arm.runs:
        squares = [each**2 * arm.runs / runs for each in deviations]
        ledger = {
            **ledger,
            "squares": _plus(ledger["squares"], squares),
            "degrees": ledger["degrees"] + 1,
        }
    means = as_amounts(_plus(arm.logs, deviations, 1 / runs))
    arm = Arm(runs, *means, _mean_limit(ledger, key, arm))
    ledger = {**ledger, "arms": {**ledger["arms"], key: list(arm)}}
    if event.choice.batch_size != spec.default_batch_size:
        return ledger
    default = ledger["default"]
    step = _plus(at_default_limit(spec, ledger, amounts), default["mean"], -1.0)
    mean = _plus(default["mean"], step, 1 / runs)
    cost = default["cost"] + (event.cost - default["cost"]) / runs
    return {**ledger, "default": {"count": default["count"] + 1, "mean": mean, "cost": cost}}


def _with_stopped_run(ledger: Ledger, event: Event) -> Ledger:
    """Add a run that was stopped early, if any of its batch size has converged."""
    key = str(event.choice.batch_size)
    if key not in ledger["arms"]:
        return ledger
    # Rounded, so that every processor finds the same groups.
    arm, log_cost = Arm(*ledger["arms"][key]), reproducible(math.log(event.cost))
    fit, _ = fitted(ledger)
    expected = lognormal.mean_above(log_cost, fit.means[key], fit.deviation)
    cusum = _cusum(ledger, fit, key, math.log(expected))
    ledger = {**ledger, "limits": _limits(event), "cusum": cusum}
    arm = arm._replace(limit_w=_mean_limit(ledger, key, arm))
    stops = _with_stop(ledger["stops"].get(key, []), log_cost)
    return {
        **ledger,
        "arms": {**ledger["arms"], key: list(arm)},
        "stops": {**ledger["stops"], key: stops},
    }


def _with_stop(stops: list[list[float]], log_cost: float) -> list[list[float]]:
    """Add a run to groups of runs by where they were stopped; if there are many, merge the nearest.

    Nearest by cost, not by its logarithm: where exactly a run was stopped matters little if that
    was early on.

    Source: Ben-Haim and Tom-Tov, "A streaming parallel decision tree algorithm", JMLR 11, 2010.
    """
    stops = sorted([*stops, [1, log_cost]], key=itemgetter(1))
    while len(stops) > 1:
        gaps = [_gap(before, after) for (_, before), (_, after) in pairwise(stops)]
        if len(stops) <= MAX_STOP_GROUPS and min(gaps) > 0:
            break
        nearest = gaps.index(min(gaps))
        (a, x), (b, y) = stops[nearest : nearest + 2]
        stops[nearest : nearest + 2] = [[a + b, x + (y - x) * b / (a + b)]]
    return stops


def _gap(before: float, after: float) -> float:
    """By how much two costs differ, given their logarithms; zero if they count as one."""
    return 0.0 if after - before < SAME_STOP else math.exp(after) - math.exp(before)


def _mean_limit(ledger: Ledger, batch_size: str, arm: Arm) -> float | None:
    """With one more run; a run without a limit counts with the mean of the others."""
    if ledger["limits"] is None:
        return arm.limit_w
    now_w: float = ledger["limits"][0]
    stopped = sum(number for number, _ in ledger["stops"].get(batch_size, []))
    count = arm.runs + stopped + 1
    return now_w if arm.limit_w is None else arm.limit_w + (now_w - arm.limit_w) / count


def _limits(event: Event) -> list[float] | None:
    if event.power_limit_w is None or event.default_power_limit_w is None:
        return None
    return [event.power_limit_w, event.default_power_limit_w]


def _cusum(ledger: Ledger, fit: Fit, batch_size: str, log_cost: float) -> list[float]:
    """Advance the cumulative sums by a run."""
    if batch_size not in fit.means:
        return list(ledger["cusum"])
    deviation = fit.deviation * math.sqrt(1 + 1 / fit.sizes[batch_size])
    surprise = (log_cost - fit.means[batch_size]) / deviation
    surprise = min(max(surprise, -LARGEST_SURPRISE), LARGEST_SURPRISE)
    dearer, cheaper = ledger["cusum"]
    return [
        max(0.0, dearer + surprise - DRIFT_ALLOWANCE),
        max(0.0, cheaper - surprise - DRIFT_ALLOWANCE),
    ]


def _next_era(spec: JobSpec, ledger: Ledger, state: State, trial_number: int) -> Ledger:
    """Close the era before a trial; without an expectation, this does nothing but wait."""
    expected = expectation(spec, ledger, state)
    if expected is None:
        return {**ledger, "cusum": [0.0, 0.0]}
    past = [*ledger["past"], _era(ledger, trial_number - 1, expected)]
    while len(past) > MAX_ERAS:
        past[:2] = [_merged(*past[:2])]
    fit, deviations = fitted(ledger)
    prior = PRIOR_DEGREES * PRIOR_NOISE**2
    return {
        **new_ledger(),
        "squares": [max(0.0, fit.degrees * each**2 - prior) for each in deviations],
        "degrees": max(0.0, fit.degrees - PRIOR_DEGREES),
        "past": past,
        "before": {key: list(arm) for key, arm in arms_fitted(ledger).items()},
        "profile": ledger["profile"],
        "limits": ledger["limits"],
    }


def _era(ledger: Ledger, last_trial: int, expected: Expectation) -> dict[str, Any]:
    return {
        "last_trial": last_trial,
        "recurrences": ledger["recurrences"],
        "spent": ledger["spent"],
        "expected": list(expected.mean),
        "error": list(expected.error),
        "carried": expected.carried,
    }


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two eras as one, with the same sums."""
    a, b = first["recurrences"], second["recurrences"]
    count = max(a + b, 1)
    expected = zip(first["expected"], second["expected"], strict=True)
    return {
        "last_trial": second["last_trial"],
        "recurrences": a + b,
        "spent": _plus(first["spent"], second["spent"]),
        "expected": [(a * x + b * y) / count for x, y in expected],
        "error": [_error((first, second), i) / count for i in range(3)],
        "carried": False,
    }


def _plus(values: Sequence[float], others: Sequence[float], factor: float = 1.0) -> list[float]:
    return [value + factor * other for value, other in zip(values, others, strict=True)]
