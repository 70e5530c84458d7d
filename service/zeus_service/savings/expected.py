"""What one run of a job's default batch size is expected to spend, by the job's ledger.

**The expectation** is the mean of the job's own runs of the default that converged, at the GPUs'
default power limit (see `power.py`). If others were stopped early, those that converged are the
cheaper ones: the mean is corrected by the share that was stopped (see `Truncation`). The error
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
from statistics import NormalDist
from typing import Any

from zeus_service.bandit.spec import MAX_AMOUNT, JobSpec
from zeus_service.savings import power

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
WIDEST = 1.5
"""Largest half-width of the logarithm's interval: an error is at most 3.5 times the mean."""
LEAST_SHRINK = 0.05
LARGEST_FACTOR = 20.0
"""No correction exceeds it."""
Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
_NORMAL = NormalDist()


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


@dataclass(frozen=True)
class Truncation:
    """Which part of a batch size's runs converged.

    If runs whose cost exceeds a threshold are stopped, those that converge are a truncated sample
    of a log-normal cost: cheaper, and more alike, than all runs. The share of runs that were
    stopped says where the threshold lies, in standard deviations from the mean of all, and so what
    to correct. Without that, intervals held the truth of about 70 instead of 95 of 100 noisy jobs
    with the policy `zeus`.

    Source: Johnson, Kotz and Balakrishnan, "Continuous univariate distributions", volume 1, 1994,
    section 13.10.1.

    Args:
        share: The share that converged.
        at: Where the others were stopped, in standard deviations from the mean of all runs.
    """

    share: float
    at: float

    @classmethod
    def of_counts(cls, runs: int, stops: int) -> Truncation:
        """Estimate the share; one run more that was not stopped stands in for what is unknown."""
        if not stops:
            return cls(1.0, math.inf)
        share = (runs + 1) / (runs + stops + 1)
        return cls(share, _NORMAL.inv_cdf(share))

    @property
    def below(self) -> float:
        """By how many deviations the mean log cost of those that converged is too low."""
        return 0.0 if self.share == 1 else _NORMAL.pdf(self.at) / self.share

    @property
    def above(self) -> float:
        """By how many deviations the mean log cost of those that were stopped is higher."""
        return _NORMAL.pdf(self.at) / (1 - self.share)

    @property
    def shrink(self) -> float:
        """The variance of log costs of those that converged, over the variance of all."""
        if self.share == 1:
            return 1.0
        return max(1 - self.below * (self.at + self.below), LEAST_SHRINK)

    def factor(self, deviation: float) -> float:
        """The mean cost of all runs, over the mean of those that converged."""
        if self.share == 1:
            return 1.0
        return self.share / max(_NORMAL.cdf(self.at - deviation), self.share / LARGEST_FACTOR)


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


def relative_error(deviation: float, degrees: float) -> float:
    """Half the width of a mean's 95 % interval, relative to the mean.

    The interval is as wide on both sides as the interval of the logarithm is above.

    Args:
        deviation: Estimated standard deviation of the logarithm of the mean.
        degrees: Degrees of freedom of this estimate.
    """
    return math.expm1(min(t_quantile(degrees) * deviation, WIDEST))


def normal_score(t: float, degrees: float) -> float:
    """The normal quantile of the probability that Student's distribution gives `t`.

    Between -6 and 6 it is exact to within 3 % for 1.5 degrees of freedom, and 1 % for 5 or more.

    Source: Wallace, "Bounds on normal approximations to Student's and the chi-square
    distributions", Annals of Mathematical Statistics 30, 1959.
    """
    n = degrees
    score = (8 * n + 1) / (8 * n + 3) * math.sqrt(n * math.log1p(t**2 / n))
    return math.copysign(score, t)


def t_quantile(degrees: float) -> float:
    """Student's 97.5 % quantile, to within 3 % for 2 degrees of freedom and 0.1 % for 5 or more.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, 26.7.5.
    """
    z, n = Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


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
    relative = [relative_error(each / root, degrees) for each in deviations[:2]]
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
        of_change = relative_error(deviation, degrees)
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
