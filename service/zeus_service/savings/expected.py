"""What one run of a job's default batch size is expected to spend, by the job's ledger.

**The expectation** is the mean of the job's own runs of the default that converged, and of those
that were stopped early, each with what it would have spent in all: the mean of a log-normal
distribution above the cost at which it was stopped. Without the runs that were stopped the
expectation would be too low. Joules and seconds follow from that cost by their ratio to the cost in
the runs that converged: the ratio in a run that was stopped early on says nothing.
Its error follows from Student's t distribution of the logarithm, and a run that was stopped early
counts there with the part of it that was seen; see `lognormal.fit`. What a run would have spent is
estimated after each further run, not once when it is stopped: the noise is little known then, and
an estimate with too little noise is too low. The noise is the relative deviation between runs of
one batch size, pooled over all batch sizes, since the default may have run once only; a weak prior,
`PRIOR_DEGREES` deviations of size `PRIOR_NOISE`, stands in until runs have been repeated. Of a
default that has not been tried, the policy's belief about its cost is the expectation; joules and
seconds follow by their ratio to the cost in runs of the nearest batch size. A default that was
tried and has never converged has no expectation, and the job's savings are unknown.

**A new era.** When the job has changed (see `ledger.py`), and the default has not converged since,
what was expected in the era before is carried over: times the change of the batch sizes that ran in
both eras, the geometric mean weighted by the inverse of its variance (a link-relative estimate). To
the error of before are added that of the change, from the noise, and `CHANGE_NOISE` for each octave
between these batch sizes and the default, which may have changed by more or by less. A batch size
is left out if its mean power limits in the two eras differ by more than 5 %, or only one is known.
(The mean, since a change of the limit may begin an era some runs later: the era before has then
runs at both limits.) If none is left, the band spans both the policy's belief and the era before.

**Power limits.** Reports carry the limit in force and the GPU's default one. The default batch
size's power profile says what a batch takes at each measured limit; between two of them, energy and
time are interpolated, and beyond the last one they stay the same. A run of the default counts with
what a batch takes at the default limit over what it takes at the run's mean limit over time. So a
run at the default limit counts as it was, and so does one whose limits or profile are unknown: if
its limit was lower, what it saved is not credited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, FiniteFloat

from zeus_service.bandit.policy import State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec
from zeus_service.savings import lognormal
from zeus_service.savings import power as limits

Ledger = dict[str, Any]
"""JSON value. It grows with the batch sizes, never with the number of trials."""

Amounts = tuple[float, float, float]
"""Joules, seconds and cost."""

LARGEST_LOG = 300.0
"""Of an amount, in either direction: the ratio of two such amounts is finite."""
Log = Annotated[float, Field(ge=-LARGEST_LOG, le=LARGEST_LOG)]

Positive = Annotated[FiniteFloat, Field(gt=0)]

PRIOR_NOISE = 0.12
PRIOR_DEGREES = 2.0
RATIO_NOISE = 0.1
"""Standard deviation, per octave of batch size, of the logarithm of a ratio to the cost."""
CHANGE_NOISE = 0.03
"""The same of the ratio between the changes of two batch sizes from one era to the next."""
SAME_LIMIT = 0.05
"""Relative difference of a batch size's mean power limits between eras that are compared."""


class Arm(NamedTuple):
    """A batch size's runs, as its ledger has them; those of the era before as `arms_fitted` says.

    Args:
        runs: Number of those that converged.
        log_energy: Mean of the logarithms of their energies in joules.
        log_time: Mean of the logarithms of their times in seconds.
        log_cost: Mean of the logarithms of their costs.
        limit_w: Mean power limit of all runs, stopped ones included; None if it is unknown.
    """

    runs: Positive
    log_energy: Log
    log_time: Log
    log_cost: Log
    limit_w: Positive | None = None

    @property
    def logs(self) -> Amounts:
        """Means of the logarithms of the amounts."""
        return self.log_energy, self.log_time, self.log_cost


@dataclass(frozen=True)
class Expectation:
    """What one run of the default at the default power limit is expected to spend.

    Args:
        mean: Expected amounts.
        error: Their errors.
        basis: Whether they come from runs of the default, or from the policy's belief.
        carried: Whether they are those of the era before, changed: its error is part of theirs.
    """

    mean: Amounts
    error: Amounts
    basis: Literal["runs", "belief"]
    carried: bool = False


def expectation(spec: JobSpec, ledger: Ledger, state: State) -> Expectation | None:
    """What a run of the default is expected to spend in this era; None if nothing is known.

    Args:
        spec: The job.
        ledger: Its ledger.
        state: The policy's state, with the belief about the default.
    """
    default = str(spec.default_batch_size)
    if ledger["default"]["count"] and default in ledger["arms"]:
        return _of_runs(ledger, default)
    carried = _carried(spec, ledger)
    return carried or _with_era_before(ledger, _of_belief(spec, ledger, state))


def power_ratio(ledger: Ledger) -> tuple[float, float] | None:
    """Energy and time of a batch of the default at the default limit over those at `limits`."""
    return limits.ratio(ledger["profile"], ledger["limits"])


def fitted(ledger: Ledger) -> tuple[lognormal.Fit, Amounts]:
    """The log costs of each batch size, and the relative deviations between its runs."""
    squares = [each + PRIOR_DEGREES * PRIOR_NOISE**2 for each in ledger["squares"]]
    samples = {}
    for batch_size, values in ledger["arms"].items():
        arm, stops = Arm(*values), ledger["stops"].get(batch_size, ())
        samples[batch_size] = lognormal.Sample(arm.runs, arm.log_cost, stops)
    fit = lognormal.fit(samples, squares[2], ledger["degrees"] + PRIOR_DEGREES)
    return fit, as_amounts(fit.deviation * math.sqrt(each / squares[2]) for each in squares)


def arms_fitted(ledger: Ledger) -> dict[str, Arm]:
    """Each batch size with the runs that would say as much, had none been stopped early."""
    fit, _ = fitted(ledger)
    arms = {}
    for batch_size, values in ledger["arms"].items():
        arm = Arm(*values)
        more = fit.means[batch_size] - arm.log_cost
        logs = as_amounts(min(log + more, LARGEST_LOG) for log in arm.logs)
        arms[batch_size] = Arm(fit.sizes[batch_size], *logs, arm.limit_w)
    return arms


def _of_runs(ledger: Ledger, default: str) -> Expectation:
    """From runs of the default, of which at least one has converged."""
    arm, stops = Arm(*ledger["arms"][default]), ledger["stops"].get(default, ())
    fit, deviations = fitted(ledger)
    cost_of_stopped = sum(
        number * lognormal.mean_above(log_cost, fit.means[default], fit.deviation)
        for number, log_cost in stops
    )
    worth = arm.runs + cost_of_stopped / ledger["default"]["cost"]  # in runs that converged
    runs = arm.runs + sum(number for number, _ in stops)
    mean = [worth / runs * each for each in ledger["default"]["mean"]]
    root = math.sqrt(fit.sizes[default])
    relative = [lognormal.error(each / root, fit.degrees) for each in deviations]
    error = [each * part for each, part in zip(mean, relative, strict=True)]
    return Expectation(as_amounts(mean), as_amounts(error), "runs")


def _of_belief(spec: JobSpec, ledger: Ledger, state: State) -> Expectation | None:
    """The policy's belief about the cost of the default, with joules and seconds by their ratio."""
    arms = policy_of(spec).describe(spec, state)
    arm = next((arm for arm in arms if arm.batch_size == spec.default_batch_size), None)
    if not ledger["arms"] or arm is None or not arm.mean or arm.spread is None:
        return None
    if arm.pulls and not ledger["past"]:  # it has failed
        return None
    octaves = {size: _octaves(spec, size) for size in ledger["arms"]}
    nearest = min(octaves, key=lambda size: (octaves[size], int(size)))
    near = Arm(*ledger["arms"][nearest])
    energy = arm.mean * math.exp(near.log_energy - near.log_cost)
    time = arm.mean * math.exp(near.log_time - near.log_cost)
    energy, time, cost = at_default_limit(spec, ledger, (energy, time, arm.mean))
    of_cost = lognormal.Z * arm.spread / arm.mean
    of_ratio = math.hypot(of_cost, lognormal.Z * RATIO_NOISE * octaves[nearest])
    return Expectation(
        (energy, time, cost),
        (energy * min(1.0, of_ratio), time * min(1.0, of_ratio), cost * min(1.0, of_cost)),
        "belief",
    )


def _carried(spec: JobSpec, ledger: Ledger) -> Expectation | None:
    """The expectation of the era before, times the change since; None if that is unknown."""
    before = {batch_size: Arm(*values) for batch_size, values in ledger["before"].items()}
    arms = arms_fitted(ledger)
    weights = {
        size: 1 / (1 / before[size].runs + 1 / arms[size].runs)
        for size in arms
        if size in before
        and math.isclose(before[size].limit_w or 0.0, arms[size].limit_w or 0.0, rel_tol=SAME_LIMIT)
    }
    if not weights:
        return None
    total = sum(weights.values())
    octaves = sum(w * _octaves(spec, size) for size, w in weights.items()) / total
    fit, deviations = fitted(ledger)
    era, mean, error = ledger["past"][-1], [], []
    for i, deviation in enumerate(deviations):
        change = sum(w * (arms[b].logs[i] - before[b].logs[i]) for b, w in weights.items()) / total
        of_change = math.hypot(deviation / math.sqrt(total), CHANGE_NOISE * octaves)
        factor = math.exp(change)
        mean.append(era["expected"][i] * factor)
        own = mean[-1] * lognormal.error(of_change, fit.degrees)
        error.append(math.hypot(era["error"][i] * factor, own))
    return Expectation(as_amounts(mean), as_amounts(error), "runs", carried=True)


def _octaves(spec: JobSpec, batch_size: str) -> float:
    """The distance of a batch size to the default."""
    return abs(math.log2(int(batch_size) / spec.default_batch_size))


def _with_era_before(ledger: Ledger, believed: Expectation | None) -> Expectation | None:
    """The belief, with a band that spans the expectation of the era before, too."""
    if believed is None or not ledger["past"]:
        return believed
    era = ledger["past"][-1]
    before = zip(era["expected"], era["error"], strict=True)
    pairs = zip(before, zip(believed.mean, believed.error, strict=True), strict=True)
    bands = [(min(m - e for m, e in both), max(m + e for m, e in both)) for both in pairs]
    return Expectation(
        as_amounts([(low + high) / 2 for low, high in bands]),
        as_amounts([(high - low) / 2 for low, high in bands]),
        "belief",
    )


def at_default_limit(spec: JobSpec, ledger: Ledger, amounts: Amounts) -> Amounts:
    """What a run of the default would have spent at the default limit, not at `limits`."""
    of_energy, of_time = power_ratio(ledger) or (1.0, 1.0)
    if of_energy == of_time == 1.0:
        return amounts
    energy, time = amounts[0] * of_energy, amounts[1] * of_time
    return energy, time, spec.cost(energy, time)


def as_amounts(values: Iterable[float]) -> Amounts:
    """Three values as `Amounts`."""
    energy, time, cost = values
    return energy, time, cost
