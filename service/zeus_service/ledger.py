"""What a job has spent, and what its default batch size would have: a fold of the job's events.

**Definition.** A recurrence is its failed tries and the run that converged. It has saved what one
run of the job's default batch size at the GPU's default power limit is expected to spend, less what
it has spent: energy in joules, time in seconds, and cost. So a job has saved, after `n` runs that
converged,

    saved = n * expected - spent

where `spent` is of all trials that have ended, failed, lost and interrupted ones included. It is
negative while a job explores. What failed tries of the default would spend is not added to
`expected`, which makes it too low, if anything.

**The expectation** is the mean of the job's own runs of the default that converged, and of those
that were stopped early, each with what it would have spent in all: the mean of a log-normal
distribution beyond where it was stopped. Without these the expectation would be too low. (One step
of expectation maximization for each run: Dempster, Laird and Rubin, "Maximum likelihood from
incomplete data via the EM algorithm", JRSS B 39, 1977.) Its error follows from Student's t
distribution of the logarithm. A run that was stopped early counts there with the part of it that
was seen: one, less the variance of the logarithm of what it would have spent in all, given where it
was stopped, over that of all runs (the observed Fisher information of a censored value). The noise
is the relative deviation between runs of one batch size, pooled over all batch sizes, since the
default may have run once only; a weak prior, `PRIOR_DEGREES` deviations of size `PRIOR_NOISE`,
stands in until runs have been repeated. Of a default that has not been tried, the policy's belief
about its cost is the expectation; joules and seconds follow by their ratio to the cost in runs of
the nearest batch size. A default that was tried and has never converged has no expectation, and the
job's savings are unknown.

**Drift.** Surprises, deviations of log costs from the mean of their batch size, are added up in
both directions. When a sum exceeds `DRIFT_THRESHOLD`, the job has changed, and a new *era* begins
with the next run that converges: each era is compared with its own expectation. Until the default
has converged in a new era, its band spans both the policy's belief and the era before. Source:
Page, "Continuous inspection schemes", Biometrika 41, 1954.

**Power limits.** Reports carry the limit in force and the GPU's default one. The default batch
size's power profile says what a batch takes at each measured limit; between two of them, energy and
time are interpolated, and beyond the last one they stay the same. A run of the default counts with
what a batch takes at the default limit over what it takes at the run's mean limit over time. So a
run at the default limit counts as it was, and so does one whose limits or profile are unknown: if
its limit was lower, what it saved is not credited.

Estimates have an `error`, half the width of their 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import BaseModel, Field

from zeus_service import lognormal
from zeus_service import power_limits as limits
from zeus_service.history import Event
from zeus_service.messages import PowerProfile
from zeus_service.policies import policy_of
from zeus_service.policies.base import State
from zeus_service.spec import JobSpec

Ledger = dict[str, Any]
"""JSON value. It grows with the batch sizes, never with the number of trials."""

QUANTITIES = ("energy_j", "time_s", "cost")
"""The names of `Amounts`."""

Amounts = tuple[float, float, float]
"""Joules, seconds and cost."""

PRIOR_NOISE = 0.12
PRIOR_DEGREES = 2.0
RATIO_NOISE = 0.1
"""Standard deviation, per octave of batch size, of the logarithm of a ratio to the cost."""
DRIFT_ALLOWANCE = 0.75
"""Subtracted from each surprise, in standard deviations, as noise."""
DRIFT_THRESHOLD = 8.0
LARGEST_SURPRISE = 4.0
"""Surprises are clipped here, so that one alone does not exceed the threshold."""
DRIFT_RUNS = 3
"""A batch size's first runs are not added up."""
MAX_ERAS = 16
"""Earlier eras are merged."""

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Numbers = tuple[_Number, _Number, _Number]


class _Default(BaseModel):
    count: int
    seen: _Number
    mean: _Numbers


class _Era(BaseModel):
    last_trial: int
    recurrences: int
    spent: _Numbers
    expected: _Numbers
    error: _Numbers


class _Stored(BaseModel):
    """What a ledger consists of; see `new_ledger`."""

    recurrences: int
    spent: _Numbers
    default: _Default
    arms: dict[str, tuple[int, _Number, _Number, _Number]]
    squares: _Numbers
    degrees: int
    cusum: tuple[_Number, _Number]
    past: list[_Era]
    profile: list[tuple[_Positive, _Positive, _Positive]]
    limits: tuple[_Positive, _Positive] | None


@dataclass(frozen=True)
class Expectation:
    """What one run of the default at the default power limit is expected to spend.

    Args:
        mean: Expected amounts.
        error: Their errors.
        basis: Whether they come from runs of the default, or from the policy's belief.
    """

    mean: Amounts
    error: Amounts
    basis: Literal["runs", "belief"]


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
        "default": {"count": 0, "seen": 0.0, "mean": [0.0] * 3},  # its runs, at the default limit
        "arms": {},  # {batch size: [runs, *means of their log amounts]}; see the module
        "squares": [0.0] * 3,  # of deviations from these means; of all eras
        "degrees": 0,  # of freedom of these squares
        "cusum": [0.0, 0.0],  # cumulative sums of surprises: [dearer, cheaper]
        "past": [],  # eras before: their end, recurrences, spent, and what was expected
        "profile": [],  # the default's: [watts, joules, seconds] of a batch, by ascending limit
        "limits": None,  # watts: of the latest run in `arms`, and the GPU's default
    }


def checked(stored: object) -> Ledger:
    """Return a ledger that was stored; raise ValueError if it is none.

    In one of an earlier version, each run counts as seen whole; for what else it lacks, see
    `lacks_profile`.
    """
    if lacks_profile(stored):
        stored = {**new_ledger(), **stored}
        del stored["power"]
    if isinstance(stored, dict) and isinstance(default := stored.get("default"), dict):
        stored = {**stored, "default": {"seen": default.get("count"), **default}}
    runs = _Stored.model_validate(stored).default
    if runs.count and runs.seen < 1:
        raise ValueError(f"the default's first run has converged, but {runs.seen} was seen")
    assert isinstance(stored, dict)
    return stored


def lacks_profile(stored: object) -> TypeGuard[Ledger]:
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
    whole = (1.0, 0.0) if event.outcome == "converged" else _to_the_end(ledger, event)
    if min(amounts) > 0 and whole is not None:
        factor, unseen = whole
        ledger = {**ledger, "limits": _limits(event)}
        expected = _amounts(factor * amount for amount in amounts)
        ledger = _with_run(spec, ledger, state, event, expected, unseen)
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


def power_ratio(ledger: Ledger) -> tuple[float, float] | None:
    """Energy and time of a batch of the default at the default limit over those at `limits`."""
    return limits.ratio(ledger["profile"], ledger["limits"])


def expectation(spec: JobSpec, ledger: Ledger, state: State) -> Expectation | None:
    """What a run of the default is expected to spend in this era; None if nothing is known.

    Args:
        spec: The job.
        ledger: Its ledger.
        state: The policy's state, with the belief about the default.
    """
    if ledger["default"]["count"]:
        return _of_runs(ledger)
    return _with_era_before(ledger, _of_belief(spec, ledger, state))


def saved(ledger: Ledger, expected: Expectation | None) -> Saved | None:
    """What a job has saved over all eras; None if there is no expectation."""
    eras = [*ledger["past"], _era(ledger, 0, expected)] if expected else ledger["past"]
    if not eras:
        return None
    columns = range(3)
    mean = [sum(e["recurrences"] * e["expected"][i] - e["spent"][i] for e in eras) for i in columns]
    error = [math.hypot(*(e["recurrences"] * e["error"][i] for e in eras)) for i in columns]
    return Saved(_amounts(mean), _amounts(error))


def recurrences(ledger: Ledger) -> int:
    """The number of runs that have converged, over all eras."""
    return int(sum(era["recurrences"] for era in (*ledger["past"], ledger)))


def spent(ledger: Ledger) -> Amounts:
    """What all trials that have ended have spent, over all eras."""
    eras = [era["spent"] for era in (*ledger["past"], ledger)]
    return _amounts(map(sum, zip(*eras, strict=True)))


def expected_at(ledger: Ledger, trial_number: int, expected: Expectation) -> Expectation:
    """What was expected of a run of the default in the era of a trial."""
    for era in ledger["past"]:
        if trial_number <= era["last_trial"]:
            return Expectation(_amounts(era["expected"]), _amounts(era["error"]), "runs")
    return expected


def noise(ledger: Ledger) -> tuple[Amounts, float]:
    """Relative standard deviations between runs of one batch size, and degrees of freedom."""
    degrees = ledger["degrees"] + PRIOR_DEGREES
    prior = PRIOR_DEGREES * PRIOR_NOISE**2
    deviations = [math.sqrt((squares + prior) / degrees) for squares in ledger["squares"]]
    return _amounts(deviations), degrees


def _of_runs(ledger: Ledger) -> Expectation:
    """From runs of the default that have converged, of which there is at least one."""
    seen, mean = ledger["default"]["seen"], ledger["default"]["mean"]
    deviations, degrees = noise(ledger)
    relative = [lognormal.error(each / math.sqrt(seen), degrees) for each in deviations]
    error = [each * part for each, part in zip(mean, relative, strict=True)]
    return Expectation(_amounts(mean), _amounts(error), "runs")


def _of_belief(spec: JobSpec, ledger: Ledger, state: State) -> Expectation | None:
    """The policy's belief about the cost of the default, with joules and seconds by their ratio."""
    arms = policy_of(spec).describe(spec, state)
    arm = next((arm for arm in arms if arm.batch_size == spec.default_batch_size), None)
    if not ledger["arms"] or arm is None or not arm.mean or arm.spread is None:
        return None
    if arm.pulls and not ledger["past"]:  # it has failed
        return None
    octaves = {size: abs(math.log2(int(size) / spec.default_batch_size)) for size in ledger["arms"]}
    nearest = min(octaves, key=lambda size: octaves[size])
    _, log_energy, log_time, log_cost = ledger["arms"][nearest]
    energy = arm.mean * math.exp(log_energy - log_cost)
    time = arm.mean * math.exp(log_time - log_cost)
    energy, time, cost = _at_default_limit(spec, ledger, (energy, time, arm.mean))
    of_cost = lognormal.Z * arm.spread / arm.mean
    of_ratio = math.hypot(of_cost, lognormal.Z * RATIO_NOISE * octaves[nearest])
    return Expectation(
        (energy, time, cost),
        (energy * min(1.0, of_ratio), time * min(1.0, of_ratio), cost * min(1.0, of_cost)),
        "belief",
    )


def _with_era_before(ledger: Ledger, believed: Expectation | None) -> Expectation | None:
    """The belief, with a band that spans the expectation of the era before, too."""
    if believed is None or not ledger["past"]:
        return believed
    era = ledger["past"][-1]
    before = zip(era["expected"], era["error"], strict=True)
    pairs = zip(before, zip(believed.mean, believed.error, strict=True), strict=True)
    bands = [(min(m - e for m, e in both), max(m + e for m, e in both)) for both in pairs]
    return Expectation(
        _amounts([(low + high) / 2 for low, high in bands]),
        _amounts([(high - low) / 2 for low, high in bands]),
        "belief",
    )


def _to_the_end(ledger: Ledger, event: Event) -> tuple[float, float] | None:
    """What a run that was stopped early would have cost, over what it has: see `lognormal.beyond`.

    None if the run was not stopped early, or if none of its batch size has converged.
    """
    count, *means = ledger["arms"].get(str(event.choice.batch_size), [0, 0.0, 0.0, 0.0])
    if event.outcome != "early_stopped" or not count or event.cost <= 0:
        return None
    deviation = noise(ledger)[0][2]
    return lognormal.beyond((math.log(event.cost) - means[2]) / deviation, deviation)


def _with_run(
    spec: JobSpec, ledger: Ledger, state: State, event: Event, amounts: Amounts, unseen: float
) -> Ledger:
    """Add a run that has converged, or was stopped early, to what is known of its batch size.

    Args:
        spec: The job.
        ledger: Before.
        state: The policy's state, before.
        event: The run's end.
        amounts: What it has spent, or would have.
        unseen: The variance of the latter's logarithm, over that of all runs.
    """
    batch_size = event.choice.batch_size
    key, logs = str(batch_size), [math.log(amount) for amount in amounts]
    count, *means = ledger["arms"].get(key, [0, 0.0, 0.0, 0.0])
    ledger = {**ledger, "cusum": _cusum(ledger, count, means[2], logs[2])}
    if max(ledger["cusum"]) > DRIFT_THRESHOLD and not unseen:
        ledger = _next_era(spec, ledger, state, event.trial_number)
        count, *means = 0, 0.0, 0.0, 0.0
    deviations = [log - mean for log, mean in zip(logs, means, strict=True)]
    if count:
        weight = count / (count + 1)
        ledger = {
            **ledger,
            "squares": [
                squares + weight * deviation**2 + unseen * each**2
                for squares, deviation, each in zip(
                    ledger["squares"], deviations, noise(ledger)[0], strict=True
                )
            ],
            "degrees": ledger["degrees"] + 1,
        }
    means = [mean + each / (count + 1) for mean, each in zip(means, deviations, strict=True)]
    ledger = {**ledger, "arms": {**ledger["arms"], key: [count + 1, *means]}}
    if batch_size == spec.default_batch_size:
        default = ledger["default"]
        number = default["count"] + 1
        step = _plus(_at_default_limit(spec, ledger, amounts), default["mean"], -1.0)
        mean = _plus(default["mean"], step, 1 / number)
        seen = default["seen"] + 1 - unseen
        ledger = {**ledger, "default": {"count": number, "seen": seen, "mean": mean}}
    return ledger


def _limits(event: Event) -> list[float] | None:
    if event.power_limit_w is None or event.default_power_limit_w is None:
        return None
    return [event.power_limit_w, event.default_power_limit_w]


def _at_default_limit(spec: JobSpec, ledger: Ledger, amounts: Amounts) -> Amounts:
    """What a run of the default would have spent at the default limit, not at `limits`."""
    of_energy, of_time = power_ratio(ledger) or (1.0, 1.0)
    if of_energy == of_time == 1.0:
        return amounts
    energy, time = amounts[0] * of_energy, amounts[1] * of_time
    return energy, time, spec.cost(energy, time)


def _cusum(ledger: Ledger, count: int, mean: float, log_cost: float) -> list[float]:
    """Advance the cumulative sums by a run of a batch size that has had `count` runs."""
    if count < DRIFT_RUNS:
        return list(ledger["cusum"])
    deviation = noise(ledger)[0][2] * math.sqrt(1 + 1 / count)
    surprise = (log_cost - mean) / deviation
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
    kept = {name: ledger[name] for name in ("squares", "degrees", "profile", "limits")}
    return {**new_ledger(), **kept, "past": past}


def _era(ledger: Ledger, last_trial: int, expected: Expectation) -> dict[str, Any]:
    return {
        "last_trial": last_trial,
        "recurrences": ledger["recurrences"],
        "spent": ledger["spent"],
        "expected": list(expected.mean),
        "error": list(expected.error),
    }


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two eras as one, with the same sums."""
    a, b = first["recurrences"], second["recurrences"]
    count = max(a + b, 1)
    pairs = {name: zip(first[name], second[name], strict=True) for name in ("expected", "error")}
    return {
        "last_trial": second["last_trial"],
        "recurrences": a + b,
        "spent": _plus(first["spent"], second["spent"]),
        "expected": [(a * x + b * y) / count for x, y in pairs["expected"]],
        "error": [math.hypot(a * x, b * y) / count for x, y in pairs["error"]],
    }


def _plus(values: Sequence[float], others: Sequence[float], factor: float = 1.0) -> list[float]:
    return [value + factor * other for value, other in zip(values, others, strict=True)]


def _amounts(values: Iterable[float]) -> Amounts:
    energy, time, cost = values
    return energy, time, cost
