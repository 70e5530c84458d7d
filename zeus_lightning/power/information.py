"""Search by value of information: measure as long as a window saves more than it costs.

The saving that another window promises is its knowledge gradient (Frazier, Powell, Dayanik, "The
Knowledge-Gradient Policy for Correlated Normal Beliefs", INFORMS Journal on Computing 21, 2009).
Let m be the means that the posterior has of the limits' log costs, S their covariance, and s2 the
variance of the noise. A window at limit l moves all means by S_l Z / sqrt(S_ll + s2), where Z has
mean 0 and variance 1. So the lowest mean is expected to fall by

    gain_l = min(m) - E[min(m + S_l Z / sqrt(S_ll + s2))]

as a fraction of the cost of all windows that are left. Z has Student's distribution with 8 degrees
of freedom rather than the normal one, because the variances are also estimates. One window may be
too noisy to change the choice where several do, so `REPEATS` windows at one limit are also
considered.

With probability `WRONG`, the posterior is wrong about a single limit. Then the limit costs what its
only window says; or, if no limit near it was measured, here or of a similar load, the cost deviates
from the expected one by `SURPRISE`.

A window costs what its limit is expected to cost more than the best one, warm-up included, and
`OVERHEAD`. So there is no knob: the longer the run, the more is measured.

The run's first window is used for nothing, and its limit measured again: a data loader that starts,
or a library that tries its algorithms, may have slowed it down.

Two windows of one limit that differ by more than the noise expected before leave open which of
them was disturbed: the limit is measured once more, whatever that is worth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from zeus_lightning.power.posterior import Floats, Posterior, infer
from zeus_lightning.power.selectors import PowerPoint

REPEATS = np.array([1, 2, 4, 8, 16, 32, 64])
"""Numbers of windows at one limit whose value is considered."""

MAX_WINDOWS = 200
"""Number of windows after which the search ends, so that profiles are small enough to be stored."""

DISPUTE = 3.0
"""How many standard deviations two windows of a limit may differ."""

WRONG = 0.05
"""Probability that the posterior is wrong about a limit."""

SURPRISE = 0.05
"""Standard deviation of a limit's log cost around the expected one if the posterior is wrong."""

NEAR = 1 / 24
"""Measured limits that are closer than this share of the range leave no room for a surprise."""

OVERHEAD = 0.005
"""What every window costs besides: two synchronizations and the search, in windows."""

_Z = np.linspace(-10, 10, 161)
_DENSITY = (1 + _Z**2 / 6) ** -4.5
_DENSITY /= _DENSITY.sum()


@dataclass(frozen=True, slots=True)
class Proposal:
    """The limit to measure next, and what its window is expected to be worth.

    Args:
        limit_w: The limit.
        saves: What the window is expected to save over the rest of the run, as a multiple of the
            cost of a window at the limit that seems best; None if the search does not estimate it.
        costs: How much more the window is expected to cost than one at that limit, as such a
            multiple.
    """

    limit_w: int
    saves: float | None = None
    costs: float | None = None


@dataclass(frozen=True)
class Information:
    """Search for the limit of the lowest cost.

    Args:
        limits_w: Ascending.
        cost: The cost of a point.
        num_gpus: Number of GPUs, each of which may draw as much as the limit.
        similar: What was measured of a similar load.
    """

    limits_w: tuple[int, ...]
    cost: Callable[[PowerPoint], float]
    num_gpus: float = 1.0
    similar: tuple[PowerPoint, ...] = ()

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> Proposal | None:
        """Return the limit whose window is worth most beyond its cost, if there is one.

        The limit that seems best is always measured before it is chosen: the run trains at it
        anyway.
        """
        if len(windows) >= MAX_WINDOWS:
            return None
        windows = windows[1:]
        posterior = self._posterior(windows)
        best = int(np.argmin(posterior.log_cost))
        left = np.maximum(0, windows_left - REPEATS)
        gain = gains(posterior)
        gain[0] += WRONG * self._surprises(windows, posterior)
        saves = (gain * (left / REPEATS)[:, None]).max(axis=0)
        costs = np.expm1(posterior.log_cost - posterior.log_cost[best]) + OVERHEAD
        if self._is_disputed(windows):
            place = self.limits_w.index(windows[-1].limit_w)
        elif self.limits_w[best] in {window.limit_w for window in windows}:
            place = int(np.argmax(saves - costs))
            if saves[place] <= costs[place]:
                return None
        else:
            place = best
        return Proposal(self.limits_w[place], float(saves[place]), float(costs[place]))

    def estimates(self, windows: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
        """Return the posterior mean of each limit that was measured."""
        windows = windows[1:]
        posterior = self._posterior(windows)
        measured = dict.fromkeys(window.limit_w for window in windows)
        return tuple(posterior.point(limit_w) for limit_w in measured)

    def _surprises(self, windows: Sequence[PowerPoint], posterior: Posterior) -> Floats:
        """Return how far below the best limit's log cost each one is expected to be: (limits,).

        If the posterior is wrong about it, see the module's docstring.
        """
        measured: list[list[float]] = [[] for _ in self.limits_w]
        for window in windows:
            measured[self.limits_w.index(window.limit_w)].append(math.log(self.cost(window)))
        near_w = NEAR * (self.limits_w[-1] - self.limits_w[0])
        known_w = {point.limit_w for point in (*windows, *self.similar)} & {*self.limits_w}
        best = int(np.argmin(posterior.log_cost))
        lower = np.zeros(len(self.limits_w))
        for place, limit_w in enumerate(self.limits_w):
            if place == best:
                continue
            if len(measured[place]) == 1 and measured[best]:
                mean = fmean(measured[best]) - measured[place][0]
                spread = math.sqrt(2 * posterior.noise[place])
            elif all(abs(limit_w - other_w) >= near_w for other_w in known_w):
                mean, spread = posterior.log_cost[best] - posterior.log_cost[place], SURPRISE
            else:
                continue
            lower[place] = np.maximum(0, mean + spread * _Z) @ _DENSITY
        return lower

    def _is_disputed(self, windows: Sequence[PowerPoint]) -> bool:
        """Whether the last window is its limit's second, and contradicts the first."""
        if not windows:
            return False
        costs = [self.cost(each) for each in windows if each.limit_w == windows[-1].limit_w]
        if len(costs) != 2:
            return False
        noise = self._posterior(windows[:-1]).noise[self.limits_w.index(windows[-1].limit_w)]
        return abs(math.log(costs[0] / costs[1])) > DISPUTE * math.sqrt(2 * noise)

    def _posterior(self, windows: Sequence[PowerPoint]) -> Posterior:
        return infer(self.limits_w, windows, self.cost, self.num_gpus, self.similar)


def gains(posterior: Posterior) -> Floats:
    """Return `gain` of the module's docstring: (numbers of windows, limits)."""
    best = int(np.argmin(posterior.log_cost))
    mean = (posterior.log_cost - posterior.log_cost[best])[None, :, None]
    found = []
    for place, noise in enumerate(posterior.noise):
        row = posterior.covariance[place]
        variance = row[place] + noise / REPEATS + 1e-30  # a constant cost has neither
        move = np.outer(1 / np.sqrt(variance), row - row[best])
        lowest = (mean + move[:, :, None] * _Z).min(axis=1)
        found.append(-(lowest @ _DENSITY))
    return np.transpose(found)
