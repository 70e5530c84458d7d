"""What few values of a log-normal distribution, some of them censored, say about its mean.

A value is censored, on the right, if it is known only that it lies above some threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
WIDEST = 1.5
"""Largest half width of an interval of a logarithm: an error is at most 3.5 times the mean."""
LARGEST_THRESHOLD = 5.0
"""In standard deviations: values censored farther out are taken to be censored there."""
LEAST_DEGREES = 2.0
"""Of freedom, of an estimate from values of which many were censored."""
LARGEST_LOG_RATIO = 60.0
"""Bounds `mean_above` over the threshold: costs that differ by more have nothing in common."""
_STEPS = 100
"""Largest number of steps of a search; fewer than ten are usual."""
_PRECISION = 1e-5
"""Of a logarithm, in standard deviations."""
_LEAST_RATE = 0.001
"""Least slope of the secant method."""
_LONGEST_STEP = 1.0
"""Of a search for the logarithm of a deviation."""
_NORMAL = NormalDist()


class Sample(NamedTuple):
    """Values of one distribution, by their logarithms.

    Args:
        whole: Number of values that are known; at least 1.
        mean: Mean of their logarithms.
        censored: Groups of the others: their number, and the logarithm of their threshold.
    """

    whole: float
    mean: float
    censored: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True)
class Fit:
    """Distributions with one deviation.

    Args:
        deviation: Standard deviation of the logarithm.
        degrees: Degrees of freedom of this estimate.
        means: Mean of the logarithm of each distribution.
        sizes: Effective sample size of each mean: so many whole values would have its error.
    """

    deviation: float
    degrees: float
    means: dict[str, float]
    sizes: dict[str, float]


def error(deviation: float, degrees: float) -> float:
    """Half the width of a 95 % interval of the mean, relative to it.

    The interval is as wide on both sides as that of the logarithm is above.

    Args:
        deviation: Estimated standard deviation of the logarithm of the mean.
        degrees: Degrees of freedom of this estimate.
    """
    return math.expm1(min(t_quantile(degrees) * deviation, WIDEST))


def mean_above(threshold: float, mean: float, deviation: float) -> float:
    """The mean of those values of a log-normal distribution that lie above a threshold.

    Args:
        threshold: Its logarithm.
        mean: Mean of the logarithm of all values.
        deviation: Standard deviation of the logarithm.
    """
    at = min((threshold - mean) / deviation, LARGEST_THRESHOLD)
    log_ratio = min(deviation**2 / 2 - at * deviation, LARGEST_LOG_RATIO)
    ratio = math.exp(log_ratio) * _NORMAL.cdf(deviation - at) / _NORMAL.cdf(-at)
    return math.exp(threshold) * ratio


def fit(samples: Mapping[str, Sample], squares: float, degrees: float) -> Fit:
    """Fit distributions with one deviation to samples of which values were censored.

    These are the estimates of maximum likelihood, except that the deviation loses a degree of
    freedom for each mean; if no value was censored, it is the usual estimate. The deviation is a
    fixed point of expectation maximization (Dempster, Laird and Rubin, "Maximum likelihood from
    incomplete data via the EM algorithm", JRSS B 39, 1977). Where thousands of values were censored
    for each whole one, the search for it may end before it is found.

    `degrees` and `sizes` follow from the observed Fisher information. A value that was censored
    counts with the part of it that was seen: one, less the variance of its logarithm above the
    threshold, over that of all values. Where values were censored, a mean depends on the deviation,
    and is as uncertain, too.

    Args:
        samples: Each of one distribution.
        squares: Sum of the squared deviations of the logarithms of whole values from the mean of
            their sample; others may be added.
        degrees: Degrees of freedom of these squares; more than 0, as are the squares.
    """
    means = {key: sample.mean for key, sample in samples.items()}
    sizes = {key: float(sample.whole) for key, sample in samples.items()}
    censored = {key: sample for key, sample in samples.items() if sample.censored}
    log_deviation = math.log(squares / degrees) / 2
    if censored:
        step = partial(_maximized, censored, squares, degrees, means)
        log_deviation = _fixed_point(step, log_deviation)
    deviation, known, slopes = math.exp(log_deviation), degrees, {}
    for key, sample in censored.items():
        tails = _tails(sample, means[key], deviation)
        size = sample.whole + sum(each.number * each.seen for each in tails)
        changes = [each.number * (each.mean - each.at * each.seen) for each in tails]
        slope = sum(changes) / size  # of the mean, by the deviation
        of_tails = sum(each.at * change for each, change in zip(tails, changes, strict=True))
        known += 1 - sample.whole / size - (of_tails + slope**2 * size) / 2
        sizes[key], slopes[key] = size, slope
    known = max(known, min(degrees, LEAST_DEGREES))
    for key, slope in slopes.items():
        sizes[key] = 1 / (1 / sizes[key] + slope**2 / (2 * known))
    return Fit(deviation, known, means, sizes)


def _maximized(
    censored: Mapping[str, Sample],
    squares: float,
    degrees: float,
    means: dict[str, float],
    log_deviation: float,
) -> float:
    """One step of expectation maximization.

    Args:
        censored: The samples of which values were censored.
        squares: See `fit`.
        degrees: See `fit`.
        means: Where to begin; the most likely ones take their place.
        log_deviation: Of the step before.
    """
    deviation = math.exp(log_deviation)
    for key, sample in censored.items():
        means[key], size = _mean(sample, means[key], deviation)
        squares += sample.whole * ((sample.mean - means[key]) ** 2 + deviation**2 / size)
        degrees += 1
        for tail in _tails(sample, means[key], deviation):
            squares += tail.number * deviation**2 * (1 + tail.at * tail.mean)
            degrees += tail.number
    return math.log(squares / degrees) / 2


def _fixed_point(step: Callable[[float], float], value: float) -> float:
    """Where a function with slopes from 0 to 1 gives what it takes, by the secant method."""
    rate, before = 1.0, None
    for _ in range(_STEPS):
        gap = step(value) - value
        if before is not None:
            rate = min(max((before[1] - gap) / (value - before[0]), _LEAST_RATE), 1.0)
        if abs(gap) < _PRECISION * rate:
            break
        before = value, gap
        value += min(max(gap / rate, -_LONGEST_STEP), _LONGEST_STEP)
    return value


def _mean(sample: Sample, mean: float, deviation: float) -> tuple[float, float]:
    """The most likely mean by Newton's method, and the number of values that were seen."""
    size = sample.whole
    for _ in range(_STEPS):
        tails = _tails(sample, mean, deviation)
        size = sample.whole + sum(each.number * each.seen for each in tails)
        step = sample.whole * (sample.mean - mean)
        step += deviation * sum(each.number * each.mean for each in tails)
        mean += step / size
        if abs(step) < _PRECISION * size * deviation:
            break
    return mean, size


class _Tail(NamedTuple):
    """A group of censored values, in standard deviations above the mean of all.

    Args:
        number: Of values.
        at: Their threshold, at most `LARGEST_THRESHOLD`.
        mean: Their mean.
        seen: One, less their variance.
    """

    number: int
    at: float
    mean: float
    seen: float


def _tails(sample: Sample, mean: float, deviation: float) -> list[_Tail]:
    """The groups of censored values of a sample, if all its values have this distribution."""
    tails = []
    for number, threshold in sample.censored:
        at = min((threshold - mean) / deviation, LARGEST_THRESHOLD)
        mean_of_tail = _NORMAL.pdf(at) / _NORMAL.cdf(-at)
        tails.append(_Tail(number, at, mean_of_tail, mean_of_tail * (mean_of_tail - at)))
    return tails


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
