"""What few values of a log-normal distribution, some of them cut off, say about its mean."""

from __future__ import annotations

import math
from statistics import NormalDist

Z = 1.959964
"""The normal distribution's 97.5 % quantile."""
WIDEST = 1.5
"""Largest half width of an interval of a logarithm: an error is at most 3.5 times the mean."""
LARGEST_CUT = 5.0
"""In standard deviations: values that were cut off farther out are taken to be cut off there."""
LARGEST_LOG_MEAN = 50.0
"""Of a mean over the value: costs that differ by more than this are none of runs alike."""
_NORMAL = NormalDist()


def error(deviation: float, degrees: float) -> float:
    """Half the width of a 95 % interval of the mean, relative to it.

    The interval is as wide on both sides as that of the logarithm is above.

    Args:
        deviation: Estimated standard deviation of the logarithm of the mean.
        degrees: Degrees of freedom of this estimate.
    """
    return math.expm1(min(t_quantile(degrees) * deviation, WIDEST))


def beyond(at: float, deviation: float) -> tuple[float, float]:
    """The part of a log-normal distribution beyond a value at which it was cut off.

    Args:
        at: The value's logarithm, in standard deviations above its mean.
        deviation: Standard deviation of the logarithm.

    Returns:
        Its mean, over the value; and the variance of its logarithm, over that of the whole.
    """
    at = min(at, LARGEST_CUT)
    share = _NORMAL.cdf(-at)
    hazard = _NORMAL.pdf(at) / share
    log_mean = min(deviation**2 / 2 - at * deviation, LARGEST_LOG_MEAN)
    mean = math.exp(log_mean) * _NORMAL.cdf(deviation - at) / share
    return mean, 1 + at * hazard - hazard**2


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
