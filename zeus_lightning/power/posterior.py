"""What windows say about a load under each power limit: a posterior, updated by each window.

**Model.** A GPU lowers its clock until its power is within the limit. At relative clock f in (0, 1]
it draws P(f) = P_idle + (P_free - P_idle) f^a while it computes, and a batch takes

    T = T0 (w + (1 - w) / f)

where w is the part that waits for memory, data or other GPUs. This refines the constants that Zeus
(You, Chung, Chowdhury, NSDI 2023, section 4.1) measures for each limit. Hypotheses about P_idle,
P_free, a, w, what waiting draws, and how close to the limit power gets are drawn once (`_draw`);
windows weight them by Bayes' rule. Nothing is assumed of T0.

**What the model misses.** The model informs, it does not bind: around the curve of each hypothesis,
log power and log time are Gaussian processes of their own, which deviate from it by `MISFITS`, with
windows that deviate from them by `NOISES`. Which of these holds is also weighted: noise is measured
by windows of the same limit that differ.

**Cold GPUs.** A GPU that warms up becomes slower: windows soon after the start are noisier, by
`COLD_NOISE`, so that they are not believed alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_lightning.power.selectors import PowerPoint

Floats = NDArray[np.float64]

HYPOTHESES = 1000
"""Number of hypotheses about a GPU and its load."""

NOISES = {0.003: 0.3, 0.006: 0.2, 0.012: 0.2, 0.025: 0.15, 0.05: 0.1, 0.1: 0.05}
"""Relative standard deviations of a window's power and time, and their probabilities. They are a
factor of two apart: with wider gaps, a noise between two of them is underestimated."""

MISFITS = {0.003: 0.3, 0.015: 0.5, 0.05: 0.2}
"""Relative deviations of a load's power and time from the curve of its hypothesis."""

REACH = 0.25
"""How far a half of its variance reaches, of the range; the other half is each limit's own."""

COLD_NOISE = 0.02
"""Additional relative standard deviation of a run's first window, while the GPU is cold."""

COLD_WINDOWS = 2.0
"""Number of windows after which the additional deviation has fallen to 1 / e of that."""

LIMIT_LIKENESS = 0.1
"""Relative standard deviation by which a similar load may differ at each limit by itself."""

COMMON_LIKENESS = 0.2
"""Relative standard deviation by which a similar load's power may differ at all limits alike."""

_FLAT = 10.0  # standard deviation of log T0, of which nothing is known


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior of each limit's power, time and cost, in ascending order of the limits.

    Args:
        limits_w: The limits.
        power_w: Expected mean power of all GPUs.
        time_s: Expected time of a batch.
        log_cost: Natural logarithm of the cost at these.
        covariance: Of the logarithms of the costs.
        noise: Variance of the logarithm of the cost in one window.
    """

    limits_w: tuple[int, ...]
    power_w: Floats
    time_s: Floats
    log_cost: Floats
    covariance: Floats
    noise: Floats

    def point(self, limit_w: int) -> PowerPoint:
        """Return what is expected at a limit."""
        place = self.limits_w.index(limit_w)
        time_s = float(self.time_s[place])
        return PowerPoint(limit_w, float(self.power_w[place]) * time_s, time_s)


class _Process(NamedTuple):
    """A Gaussian process around the curve of each hypothesis, given windows.

    `log_likelihood` has a value and `mean` a row for each hypothesis; `covariance`, over the
    limits, is the same for all.
    """

    log_likelihood: Floats
    mean: Floats
    covariance: Floats


def infer(
    limits_w: tuple[int, ...],
    windows: Sequence[PowerPoint],
    cost: Callable[[PowerPoint], float],
    num_gpus: float = 1.0,
    similar: Sequence[PowerPoint] = (),
) -> Posterior:
    """Return what windows say about the cost at each limit.

    Args:
        limits_w: Ascending.
        windows: What was measured after the run's first window, in order; a limit may occur
            several times.
        cost: Of a point; positive.
        num_gpus: Number of GPUs, each of which may draw as much as the limit.
        similar: What was measured of a similar load, such as another batch size's.
    """
    powers, times = _draw(limits_w)
    place, power, time = _logs(limits_w, windows, num_gpus)
    cold = (COLD_NOISE * np.exp(-np.arange(1, len(windows) + 1) / COLD_WINDOWS)) ** 2
    near = np.abs(np.subtract.outer(np.arange(len(limits_w)), np.arange(len(limits_w))))
    shape = (np.exp(-near / (REACH * len(limits_w))) + np.eye(len(limits_w))) / 2
    levels = list(product(NOISES, MISFITS))
    fits = [
        (
            _condition(powers, misfit**2 * shape, place, power, noise**2 + cold),
            _condition(times, misfit**2 * shape + _FLAT**2, place, time, noise**2 + cold),
        )
        for noise, misfit in levels
    ]
    log = np.array(
        [power_fit.log_likelihood + time_fit.log_likelihood for power_fit, time_fit in fits]
    )
    log += np.log([[NOISES[noise] * MISFITS[misfit]] for noise, misfit in levels])
    log += _log_prior(limits_w, similar, num_gpus)
    weights = np.exp(log - log.max())
    weights /= weights.sum()

    means = [np.array([fit.mean for fit in each]) for each in zip(*fits, strict=True)]
    power, time = (np.tensordot(weights, mean, 2) for mean in means)
    log_cost, by_power, by_time = _elasticities(limits_w, cost, power + np.log(num_gpus), time)
    off = by_power * (means[0] - power) + by_time * (means[1] - time)
    off = _lower_side(off, weights, int(np.argmin(log_cost)))
    covariance = np.tensordot(weights[..., None] * off, off, ((0, 1), (0, 1)))
    level_weights = weights.sum(axis=1)
    for weight, (power_fit, time_fit) in zip(level_weights, fits, strict=True):
        covariance += weight * np.outer(by_power, by_power) * power_fit.covariance
        covariance += weight * np.outer(by_time, by_time) * time_fit.covariance
    noise = level_weights @ np.array([noise**2 for noise, _ in levels])
    return Posterior(
        limits_w,
        num_gpus * np.exp(power),
        np.exp(time),
        log_cost,
        covariance,
        noise * (by_power**2 + by_time**2),
    )


@lru_cache(maxsize=8)
def _draw(limits_w: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Draw hypotheses for a GPU; return log power in watts and log T / T0, (hypotheses, limits).

    A Latin hypercube: the parameters are uniform, or squares of uniform ones, within their ranges.
    """
    rng = np.random.default_rng(0)
    strata = rng.permuted(np.tile(np.arange(HYPOTHESES), (6, 1)), axis=1)
    uniform = ((strata + rng.random(strata.shape)) / HYPOTHESES)[:, :, None]
    limits = np.array(limits_w, dtype=float)
    idle_w = (0.05 + 0.85 * uniform[0] ** 1.5) * limits[0]
    free_w = np.maximum((0.3 + 1.0 * uniform[1]) * limits[-1], 1.2 * idle_w)
    exponent = 1.2 + 2.3 * uniform[2]
    waiting = 0.9 * uniform[3]
    drawn = 1 - 0.2 * uniform[4] ** 2  # of the limit
    resting = uniform[5] ** 2  # 0: waiting draws as much as computing, 1: as idle
    computing_w = np.minimum(drawn * limits, free_w)
    clock = np.maximum(0.0, (computing_w - idle_w) / (free_w - idle_w)) ** (1 / exponent)
    computing = (1 - waiting) / np.maximum(0.05, clock)
    waiting_w = computing_w + resting * np.minimum(0.0, idle_w - computing_w)
    time = waiting + computing
    power_w = (waiting * waiting_w + computing * computing_w) / time
    return np.log(power_w), np.log(time)


def _logs(
    limits_w: tuple[int, ...], points: Sequence[PowerPoint], num_gpus: float
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the places of the points' limits, and the logarithms of a GPU's power and of time."""
    place = np.array([limits_w.index(point.limit_w) for point in points], dtype=np.int64)
    power = np.log([point.power_w / num_gpus for point in points])
    return place, power, np.log([point.time_s for point in points])


def _log_prior(
    limits_w: tuple[int, ...], similar: Sequence[PowerPoint], num_gpus: float
) -> Floats | float:
    """Return the log weight of each hypothesis before the first window."""
    known = [point for point in similar if point.limit_w in limits_w]
    if not known:
        return 0.0
    powers, times = _draw(limits_w)
    place, power, time = _logs(limits_w, known, num_gpus)
    variance = np.full(len(known), LIMIT_LIKENESS**2)
    flat = np.ones((len(limits_w), len(limits_w)))
    power_fit = _condition(powers, COMMON_LIKENESS**2 * flat, place, power, variance)
    time_fit = _condition(times, _FLAT**2 * flat, place, time, variance)
    return power_fit.log_likelihood + time_fit.log_likelihood


def _condition(
    curves: Floats, prior: Floats, place: NDArray[np.int64], values: Floats, variance: Floats
) -> _Process:
    """Condition Gaussian processes on windows.

    Args:
        curves: (hypotheses, limits), the processes' means.
        prior: (limits, limits), their covariance.
        place: The place of each window's limit.
        values: What the windows measured.
        variance: Of their noise.
    """
    limits = prior.shape[0]
    weight = np.bincount(place, 1 / variance, limits)
    (at,) = weight.nonzero()
    weight = weight[at]
    mean = np.bincount(place, values / variance, limits)[at] / weight
    scatter = values - mean[np.searchsorted(at, place)]
    log = -(scatter**2 / variance + np.log(variance)).sum() - np.log(weight).sum()
    covariance = prior[np.ix_(at, at)] + np.diag(1 / weight)
    inverse = np.linalg.inv(covariance)
    off = mean - curves[:, at]
    solved = off @ inverse
    log -= np.linalg.slogdet(covariance)[1] + (off * solved).sum(axis=1)
    # In Joseph's form, which rounding cannot make negative: the prior of T0 is wide.
    gain = prior[:, at] @ inverse
    left = np.eye(limits)
    left[:, at] -= gain
    posterior = left @ prior @ left.T + gain / weight @ gain.T
    return _Process(log / 2, curves + solved @ prior[at], posterior)


def _lower_side(off: Floats, weights: Floats, best: int) -> Floats:
    """Scale deviations of log costs, relative to the best limit's, to the spread of the lower half.

    Costs at low limits may be far higher than expected, but hardly lower, and a saving needs lower.
    """
    base = off[..., best, None]
    apart = off - base
    spread = np.tensordot(weights, apart**2, 2)
    lower = 2 * np.tensordot(weights, np.minimum(apart, 0) ** 2, 2)
    return base + np.sqrt(lower / np.maximum(spread, 1e-30)) * apart


def _elasticities(
    limits_w: tuple[int, ...], cost: Callable[[PowerPoint], float], power: Floats, time: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the log cost at each limit, and its derivatives by log power and by log time."""
    step = 1e-4

    def log_cost(power: Floats, time: Floats) -> Floats:
        points = zip(limits_w, np.exp(power + time).tolist(), np.exp(time).tolist(), strict=True)
        return np.log([cost(PowerPoint(*point)) for point in points])

    base = log_cost(power, time)
    by_power = (log_cost(power + step, time) - base) / step
    return base, by_power, (log_cost(power, time + step) - base) / step
