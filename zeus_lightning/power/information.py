"""Search with a model of GPUs: measure the limit that may be the cheapest, by the windows so far.

**Model.** A GPU lowers its clock until its power is within the limit. At relative clock f in (0, 1]
it draws P(f) = P_idle + (P_free - P_idle) f^a while it computes, and a batch takes

    T = T0 (w + (1 - w) / f)

where w is the part that waits for memory, data or other GPUs. This refines the constants that Zeus
(You, Chung, Chowdhury, NSDI 2023, section 4.1) measures for each limit.

**What is expected.** Before the first window, log power and log time over the limits have the mean
and covariance of `DRAWS` sets of the model's parameters, and any T0. Loads deviate from the model,
by `MISFIT` along the limits and by `OWN` at each one. Windows deviate from their load by `NOISE`,
and by more while the GPU is cold, because a warm GPU is slower. All are Gaussian, so windows update
the expectation in closed form, and many windows overrule the model.

**What is measured.** The limit with the lowest lower confidence bound: its expected log cost minus
one standard deviation of its distance from the best limit's (Cox and John, "A statistical method
for global optimization", IEEE SMC 1992). If no bound is lower than the best limit, that limit is
measured again, which costs nothing.

**When it ends.** After `MAX_WINDOWS` windows, or a `SHARE` of the run if that is less.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from zeus_lightning.power.selectors import PowerPoint

Floats = NDArray[np.float64]

MIN_WINDOWS = 3
"""Number of windows that even the shortest run measures; all counts include the first window."""

MAX_WINDOWS = 15
"""Number of windows after which the search ends."""

SHARE = 0.3
"""Largest share of the run's windows that are measured."""

DRAWS = 1000
"""Number of sets of the model's parameters."""

MISFIT = 0.03
"""Relative deviation of a load's power and time from the model, similar at neighbouring limits."""

REACH = 0.25
"""Distance at which deviations are related by 1 / e, as a share of the range of limits."""

OWN = 0.01
"""Relative deviation at each limit by itself."""

NOISE = 0.02
"""Relative standard deviation of a window's power and time."""

COLD_NOISE = 0.05
"""Additional relative standard deviation of a run's first window, while the GPU is cold."""

COLD_WINDOWS = 3.0
"""Number of windows after which the additional deviation has fallen to 1 / e of that."""

_FLAT = 10.0  # standard deviation of log T0, of which nothing is known


@dataclass(frozen=True)
class Information:
    """Search for the limit of the lowest cost.

    Args:
        limits_w: Ascending.
        cost: The cost of a point; positive.
        num_gpus: Number of GPUs, each of which may draw as much as the limit.
    """

    limits_w: tuple[int, ...]
    cost: Callable[[PowerPoint], float]
    num_gpus: float = 1.0

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> int | None:
        """Return the limit whose cost may be the lowest.

        The limit that seems best is always measured before another one.
        """
        measured = 1 + len(windows)
        if measured >= max(MIN_WINDOWS, min(MAX_WINDOWS, SHARE * (measured + windows_left))):
            return None
        log_cost, spread = self.expected(windows)
        best_w = self.limits_w[int(np.argmin(log_cost))]
        if best_w in {window.limit_w for window in windows}:
            return self.limits_w[int(np.argmin(log_cost - spread))]
        return best_w

    def expected(self, windows: Sequence[PowerPoint]) -> tuple[Floats, Floats]:
        """Return the limits' log costs, and the deviations of their distances from the lowest."""
        mean, covariance = self._posterior(windows)
        log_cost = self._log_cost(mean)
        step = 1e-4
        by_power, by_time = (
            np.diag(self._log_cost(mean + step * one) - log_cost) / step
            for one in np.repeat(np.eye(2), len(self.limits_w), axis=1)
        )
        slope = np.hstack([by_power, by_time])
        slope = slope - slope[np.argmin(log_cost)]
        return log_cost, np.sqrt(np.maximum(0, ((slope @ covariance) * slope).sum(axis=1)))

    def estimates(self, windows: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
        """Return what is expected at each limit that was measured."""
        points = {point.limit_w: point for point in self._points(self._posterior(windows)[0])}
        return tuple(points[limit_w] for limit_w in dict.fromkeys(one.limit_w for one in windows))

    def _posterior(self, windows: Sequence[PowerPoint]) -> tuple[Floats, Floats]:
        """Return the mean and the covariance of each limit's log power, then of its log time."""
        mean, covariance = _prior(self.limits_w)
        if not windows:
            return mean, covariance
        place = np.array([self.limits_w.index(window.limit_w) for window in windows])
        seen = np.concatenate([place, len(self.limits_w) + place])
        power_w = [window.power_w / self.num_gpus for window in windows]
        values = np.log(power_w + [window.time_s for window in windows])
        cold = COLD_NOISE * np.exp(-np.arange(1, len(windows) + 1) / COLD_WINDOWS)
        noise = np.tile(NOISE**2 + cold**2, 2)
        gain = np.linalg.solve(covariance[np.ix_(seen, seen)] + np.diag(noise), covariance[seen]).T
        return mean + gain @ (values - mean[seen]), covariance - gain @ covariance[seen]

    def _points(self, logs: Floats) -> list[PowerPoint]:
        """Return the points of all limits, from their log power and log time."""
        power_w, time_s = np.exp(logs.reshape(2, -1))
        energy_j = self.num_gpus * power_w * time_s
        return list(map(PowerPoint, self.limits_w, energy_j.tolist(), time_s.tolist()))

    def _log_cost(self, logs: Floats) -> Floats:
        return np.array([math.log(self.cost(point)) for point in self._points(logs)])


@lru_cache(maxsize=8)
def _prior(limits_w: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the mean and covariance of a GPU's log power in watts, then of its log time.

    The parameters are a Latin hypercube: uniform, or powers of uniform ones, within their ranges.
    """
    rng = np.random.default_rng(0)
    strata = rng.permuted(np.tile(np.arange(DRAWS), (6, 1)), axis=1)
    uniform = ((strata + rng.random(strata.shape)) / DRAWS)[:, :, None]
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
    logs = np.log(np.hstack([power_w, time]))

    count = len(limits)
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count))) / (REACH * count)
    deviation = MISFIT**2 * np.exp(-apart) + OWN**2 * np.eye(count)
    covariance = np.cov(logs, rowvar=False) + np.kron(np.eye(2), deviation)
    covariance[count:, count:] += _FLAT**2
    return logs.mean(axis=0), covariance
