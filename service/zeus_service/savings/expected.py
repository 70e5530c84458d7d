"""What one run of a job's default batch size is expected to spend, by the job's ledger.

**The expectation** is the mean of the job's own runs of the default that converged, at the GPUs'
default power limit (see `power.py`). If others were stopped early, those that converged are the
cheaper ones: the mean is corrected by the share that was stopped (see `lognormal.py`). The error
follows from Student's t distribution of the logarithm. The noise is the deviation between runs with
the same batch size, pooled over all batch sizes, because the default may have run only once. A weak
prior, `PRIOR_DEGREES` deviations of size `PRIOR_NOISE`, stands in until a batch size has run again.

**Before a run of the default has converged**, nothing is expected, and the savings are unknown.

**In a new era** (see `ledger.py`), until the default has run again, the expectation of the era
before is carried over: times the change of the batch sizes that ran in both eras, the geometric
mean weighted by the inverse of its variance (a link-relative estimate). Only runs that converged
count, and only batch sizes whose mean power limits in the two eras differ by at most `SAME_LIMIT`.
The error grows by that of the change: the noise, and `CHANGE_NOISE` for each octave between these
batch sizes and the default, which may have changed by more or by less. If no batch size is left,
the expectation of the era before stays.

**On hardware that the job has moved to**, its default may never run, since the policy knows from
elsewhere which batch sizes are better. Until it does, the expectation on other hardware is carried
over in the same way, with `HARDWARE_NOISE` for each octave, from where the result is known best.
Only hardware on which an expectation is known can say it. Power limits are compared relative to the
default limit. Nothing is expected while no batch size has converged on both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_service.bandit.spec import MAX_AMOUNT, JobSpec
from zeus_service.savings import lognormal, power
from zeus_service.savings.lognormal import Truncation

Ledger = dict[str, Any]
"""JSON value, see `ledger.new_ledger`. It grows with the batch sizes, not with the trials."""

Arm = dict[str, Any]
"""One batch size in a ledger, see `ledger.py`."""

PRIOR_NOISE = 0.08
PRIOR_DEGREES = 1.5
"""Chosen by the coverage of seeds 0 to 99 of the simulated jobs in `benchmarks/savings.py`."""
CHANGE_NOISE = 0.03
"""Standard deviation, per octave, of the ratio between the changes of two batch sizes."""
HARDWARE_NOISE = 0.1
"""Standard deviation, per octave, of the ratio between two batch sizes' changes from one hardware
to another: between V100 and P100, of the energies of recorded epochs; 0.09 of their times."""
SAME_LIMIT = 0.05
"""Relative difference between a batch size's mean power limits, in shares of the default limit, in
eras that are compared."""


@dataclass(frozen=True)
class Expected:
    """What one run of the default at the default power limit is expected to spend.

    Args:
        energy_j: Joules.
        time_s: Seconds.
        energy_error_j: Half the width of the energy's 95 % interval.
        time_error_s: Half the width of the time's 95 % interval.
    """

    energy_j: float
    time_s: float
    energy_error_j: float
    time_error_s: float


def expectation(
    spec: JobSpec,
    ledger: Ledger,
    profile: power.Profile = (),
    elsewhere: Sequence[Ledger] = (),
) -> Expected | None:
    """What a run of the default is expected to spend in the open era; None if nothing is known.

    Args:
        spec: The job.
        ledger: Its ledger on this hardware.
        profile: The default's power profile; empty if it has none.
        elsewhere: What an era that follows would know, on each other hardware whose default has
            run, see `ledger.following`.
    """
    if str(spec.default_batch_size) in ledger["arms"]:
        return _from_runs(spec, ledger, profile)
    before = ledger["before"]
    if before is None:
        return _from_elsewhere(spec, ledger, elsewhere)
    return _carried_over(spec, ledger, CHANGE_NOISE) or Expected(**before["expected"])


def pooled(ledger: Ledger) -> tuple[list[float], float]:
    """Squared deviations between runs of one batch size, and their degrees of freedom.

    The squares are of log energy, log time and log cost. Where runs were stopped early, the others
    are more alike than all: they have fewer degrees of freedom.
    """
    squares, degrees = ledger["squares"], ledger["degrees"]
    for arm in ledger["arms"].values():
        squares = [a + b for a, b in zip(squares, arm["squares"], strict=True)]
        degrees += (arm["runs"] - 1) * truncation(arm).shrink
    return squares, degrees


def noise(ledger: Ledger) -> tuple[list[float], float]:
    """Standard deviations of log energy, log time and log cost; their degrees of freedom."""
    squares, degrees = pooled(ledger)
    degrees += PRIOR_DEGREES
    prior = PRIOR_DEGREES * PRIOR_NOISE**2
    return [math.sqrt((each + prior) / degrees) for each in squares], degrees


def truncation(arm: Arm) -> Truncation:
    """Which part of a batch size's runs was not stopped early."""
    return Truncation.of_counts(arm["runs"], arm["stops"])


def _from_runs(spec: JobSpec, ledger: Ledger, profile: power.Profile) -> Expected:
    """The mean of the default's runs, of which at least one has converged."""
    arm = ledger["arms"][str(spec.default_batch_size)]
    deviations, degrees = noise(ledger)
    # The job's first run had no bound, as a rule, and is not corrected.
    share = 1 - 1 / arm["runs"] if ledger["before"] is None else 1.0
    factor = 1 + share * (truncation(arm).factor(deviations[2]) - 1)
    ratios = power.ratio(profile, arm["limit_w"], ledger["default_limit_w"])
    mean = [factor * ratio * each for ratio, each in zip(ratios, arm["mean"], strict=True)]
    root = math.sqrt(arm["runs"])
    relative = [lognormal.relative_error(each / root, degrees) for each in deviations[:2]]
    return _expected(mean, [part * each for part, each in zip(relative, mean, strict=True)])


def _from_elsewhere(spec: JobSpec, ledger: Ledger, elsewhere: Sequence[Ledger]) -> Expected | None:
    """What is carried over from the hardware that says the most; None if none says anything."""
    found = [_carried_over(spec, {**ledger, **each}, HARDWARE_NOISE) for each in elsewhere]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.energy_error_j / each.energy_j, default=None)


def _carried_over(spec: JobSpec, ledger: Ledger, change_noise: float) -> Expected | None:
    """The expectation of the era before, times the change since; None if that is unknown."""
    before, arms = ledger["before"], ledger["arms"]
    pairs = {
        size: (before["arms"][size], arm)
        for size, arm in arms.items()
        if size in before["arms"]
        and math.isclose(
            _share_of_limit(before["arms"][size], before["default_limit_w"]),
            _share_of_limit(arm, ledger["default_limit_w"]),
            rel_tol=SAME_LIMIT,
        )
    }
    if not pairs:
        return None
    weights = {size: 1 / (1 / a["runs"] + 1 / b["runs"]) for size, (a, b) in pairs.items()}
    total = sum(weights.values())
    octaves = sum(weight * _octaves(spec, size) for size, weight in weights.items()) / total
    deviations, degrees = noise(ledger)
    was, mean, error = Expected(**before["expected"]), [], []
    for index, (then, then_error) in enumerate(
        ((was.energy_j, was.energy_error_j), (was.time_s, was.time_error_s))
    ):
        changes = {size: b["logs"][index] - a["logs"][index] for size, (a, b) in pairs.items()}
        factor = math.exp(sum(weights[size] * each for size, each in changes.items()) / total)
        deviation = math.hypot(deviations[index] / math.sqrt(total), change_noise * octaves)
        mean.append(then * factor)
        of_change = lognormal.relative_error(deviation, degrees)
        error.append(factor * math.hypot(then_error, then * of_change))
    return _expected(mean, error)


def _share_of_limit(arm: Arm, default_limit_w: float | None) -> float:
    """A batch size's mean power limit over the default limit; 0 if it is unknown."""
    return float(arm["limit_w"] or 0.0) / (default_limit_w or 1.0)


def _octaves(spec: JobSpec, batch_size: str) -> float:
    """The distance of a batch size to the default."""
    return abs(math.log2(int(batch_size) / spec.default_batch_size))


def _expected(mean: Iterable[float], error: Iterable[float]) -> Expected:
    """At most what a report can carry: chains of absurd changes must stay finite."""
    (energy_j, time_s), (energy_error_j, time_error_s) = (
        [min(each, MAX_AMOUNT) for each in pair] for pair in (mean, error)
    )
    return Expected(energy_j, time_s, energy_error_j, time_error_s)
