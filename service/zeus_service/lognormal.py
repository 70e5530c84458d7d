"""What few values of a log-normal distribution, some of them cut off, say about its mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
WIDEST = 1.5
"""Largest half width of an interval of a logarithm: an error is at most 3.5 times the mean."""
LARGEST_CUT = 5.0
"""In standard deviations: values that were cut off farther out are taken to be cut off there."""
LEAST_DEGREES = 2.0
"""Of freedom, of an estimate from values of which many were cut off."""
LARGEST_LOG_MEAN = 50.0
"""Of a mean over the value: costs that differ by more than this are none of runs alike."""
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
        cut: Number of values that were cut off.
        cut_at: Mean of the logarithms at which they were cut off.
    """

    whole: float
    mean: float
    cut: int
    cut_at: float


@dataclass(frozen=True)
class Fit:
    """Distributions with one deviation.

    Args:
        deviation: Standard deviation of the logarithm.
        degrees: Degrees of freedom of this estimate.
        means: Mean of the logarithm of each distribution.
        sizes: So many whole values would say as much about the mean of each distribution.
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


def beyond(at: float, deviation: float) -> float:
    """The mean of a log-normal distribution beyond a value at which it was cut off, over the value.

    Args:
        at: The value's logarithm, in standard deviations above its mean.
        deviation: Standard deviation of the logarithm.
    """
    at = min(at, LARGEST_CUT)
    log_mean = min(deviation**2 / 2 - at * deviation, LARGEST_LOG_MEAN)
    return math.exp(log_mean) * _NORMAL.cdf(deviation - at) / _NORMAL.cdf(-at)


def fit(samples: Mapping[str, Sample], squares: float, degrees: float) -> Fit:
    """Fit distributions with one deviation to samples of which values were cut off.

    These are the estimates of maximum likelihood, but that the deviation counts the means as
    estimated, as the usual one of whole values does, which this is if none was cut off. The
    deviation is a fixed point of expectation maximization (Dempster, Laird and Rubin, "Maximum
    likelihood from incomplete data via the EM algorithm", JRSS B 39, 1977).

    `degrees` and `sizes` follow from the observed Fisher information. A value that was cut off
    counts with the part of it that was seen: one, less the variance of its logarithm given where it
    was cut off, over that of all values. Where values were cut off, a mean depends on the
    deviation, and is as uncertain, too.

    Args:
        samples: Each of one distribution.
        squares: Sum of the squared deviations of the logarithms of whole values from the mean of
            their sample; others may be added.
        degrees: Degrees of freedom of these squares; more than 0, as are the squares.
    """
    means = {key: sample.mean for key, sample in samples.items()}
    sizes = {key: float(sample.whole) for key, sample in samples.items()}
    cut = {key: sample for key, sample in samples.items() if sample.cut}
    log_deviation = math.log(squares / degrees) / 2
    if cut:
        step = partial(_maximized, cut, squares, degrees, means)
        log_deviation = _fixed_point(step, log_deviation)
    deviation, known, slopes = math.exp(log_deviation), degrees, {}
    for key, (whole, _, number, cut_at) in cut.items():
        at, hazard, seen = _tail((cut_at - means[key]) / deviation)
        size = whole + number * seen
        slope = number * (hazard - at * seen) / size  # of the mean, by the deviation
        known += 1 - whole / size - slope * (at + slope) * size / 2
        sizes[key], slopes[key] = size, slope
    known = max(known, min(degrees, LEAST_DEGREES))
    for key, slope in slopes.items():
        sizes[key] = 1 / (1 / sizes[key] + slope**2 / (2 * known))
    return Fit(deviation, known, means, sizes)


def _maximized(
    cut: Mapping[str, Sample],
    squares: float,
    degrees: float,
    means: dict[str, float],
    log_deviation: float,
) -> float:
    """One step of expectation maximization.

    Args:
        cut: The samples of which values were cut off.
        squares: See `fit`.
        degrees: See `fit`.
        means: Where to begin; the most likely ones take their place.
        log_deviation: Of the step before.
    """
    deviation = math.exp(log_deviation)
    for key, sample in cut.items():
        means[key], size = _mean(sample, means[key], deviation)
        at, hazard, _ = _tail((sample.cut_at - means[key]) / deviation)
        squares += sample.whole * ((sample.mean - means[key]) ** 2 + deviation**2 / size)
        squares += sample.cut * deviation**2 * (1 + at * hazard)
        degrees += 1 + sample.cut
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
        _, hazard, seen = _tail((sample.cut_at - mean) / deviation)
        size = sample.whole + sample.cut * seen
        step = sample.whole * (sample.mean - mean) + sample.cut * deviation * hazard
        mean += step / size
        if abs(step) < _PRECISION * size * deviation:
            break
    return mean, size


def _tail(at: float) -> tuple[float, float, float]:
    """Of a normal distribution beyond a value, which is cut at `LARGEST_CUT`.

    Returns:
        The value, the mean beyond it, and one less the variance beyond it.
    """
    at = min(at, LARGEST_CUT)
    hazard = _NORMAL.pdf(at) / _NORMAL.cdf(-at)
    return at, hazard, hazard * (hazard - at)


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
