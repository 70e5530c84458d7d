"""The posterior of a positive quantity of runs over all batch sizes at once.

Two quantities are modelled: the epochs that a run takes to reach the target, and what an epoch
costs on one kind of hardware. Bayesian inference in closed form: no fit and no iteration, so
nothing that can fail to converge.

**A run** with batch size `b` has the value `exp(f(b) + noise)`, the noise normal with one standard
deviation `sigma` for all batch sizes.

**The curve** over octaves `x = log2(b)` is flat on one side of a knee `z`, and has a slope `s` per
octave on the other:

    h(x) = log(1 + exp(s * (x - z)))
    f(x) = c + h(x) + g(x),    c flat,    g ~ GP(0, smooth^2 * exp(-d^2 / 2) + rough^2 * [d = 0])

with `d` the distance in octaves. So a run is also evidence about neighbouring batch sizes. Epochs
rise with the batch size: beyond a critical batch size, a step that averages more samples makes no
more progress (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, equation 2.11,
where the slope is `log(2)`). The cost of an epoch falls, because a part of each step takes as long
whatever its batch size; if the work for the samples follows it, the slope is `-log(2)`. The knees
lie on a grid from one octave below the smallest batch size to one above the largest; slopes and
`sigma` lie on coarse grids. The unit does not matter, because of `c`.

**A curve of any shape** is one more point of the grid, with each `sigma`: `h = 0`, and a larger
residual. When values refute every knee, the posterior is there, and batch sizes are almost
independent of each other.

**The same curve on other hardware** is a further point, `h` its mean, with a small residual.

At each point of the grid, `f` is a Gaussian process with a flat offset (Rasmussen and Williams,
"Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7); the number, mean and sum of
squares of each batch size's logarithms are sufficient statistics. The points are weighted by their
marginal likelihoods (section 5.4.1): the posterior is a mixture.

**A run that was stopped** at the value `e` would have had a larger one. Each point's weight is
multiplied by its probability of that, and its mean moves by one step of moment matching (chapter 3
there, expectation propagation). The normal distribution function is approximated by the logistic
one, `Phi(t) = 1 / (1 + exp(-1.702 t))`, whose heavier tails are more tolerant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_service.bandit.policy import STATE_DECIMALS, State

Floats = NDArray[np.float64]
Curve = tuple[float, ...]
"""The expected logarithm for each batch size."""

KNEES = 13
ANY_CURVE_RESIDUAL = 0.4, 0.2
"""Standard deviations of the residual, smooth and rough, of a curve of any shape."""
ELSEWHERE_RESIDUALS = (0.03, 0.015), (0.08, 0.03)
"""Standard deviations of the residual around the curve on other hardware."""
SHARE_ELSEWHERE = 1000.0
"""Prior probability of that curve, in those of one with a knee."""
UNLIKELY = 10.0
"""Points of the grid whose log likelihood, before stopped runs are considered, is so far below the
largest are left out."""
LOGISTIC_SCALE = 1.702
"""That with which the logistic function is nearest to the normal distribution function."""


@dataclass(frozen=True)
class Prior:
    """What is assumed of a curve before the first run.

    Args:
        slopes: Natural logarithm per octave, on the side of the knee that is not flat: positive
            above it, negative below it.
        noises: Standard deviation of the logarithm between runs.
        knee_residuals: Standard deviations of the residual `g`, `smooth` and `rough`; all of them
            are equally likely.
    """

    slopes: tuple[float, ...]
    noises: tuple[float, ...]
    knee_residuals: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Posterior:
    """A mixture of Gaussians over the logarithms of n batch sizes.

    In a component of group `m`, the deviations of the logarithms from their means are
    `factors[m] @ z + sqrt(own[m]) * e`, with independent standard normal `z` and `e`.

    Args:
        share: (k,), the weights of the components; they add up to 1.
        means: (k, n), the expected logarithms.
        group: (k,), each component's index in the other arrays.
        factors: (m, n, r).
        own: (m, n).
        noises: (m,), standard deviations of a run's logarithm.
        stopped: (n,), number of runs stopped before they had their value, where none had one.
        stopped_at: (n,), mean logarithm of what they had reached.
    """

    share: Floats
    means: Floats
    group: NDArray[np.intp]
    factors: Floats
    own: Floats
    noises: Floats
    stopped: Floats
    stopped_at: Floats

    @cached_property
    def mean(self) -> Floats:
        """(n,), the expected logarithms."""
        return self.share @ self.means

    @cached_property
    def variance(self) -> Floats:
        """(n,), the variances of the expected logarithms."""
        group_share = np.bincount(self.group, self.share, len(self.own))
        return group_share @ self._variances + self.share @ (self.means - self.mean) ** 2

    @cached_property
    def noise_variance(self) -> float:
        """The variance of a run's logarithm around its expectation."""
        return float(self.share @ self.noises[self.group] ** 2)

    @cached_property
    def _variances(self) -> Floats:
        """(m, n), the variances in a component."""
        variances: Floats = np.square(self.factors).sum(axis=2) + self.own
        return variances

    def at(self, indices: Sequence[int]) -> Posterior:
        """The posterior of some of its batch sizes."""
        return replace(
            self,
            means=self.means[:, indices],
            factors=self.factors[:, indices],
            own=self.own[:, indices],
            stopped=self.stopped[indices],
            stopped_at=self.stopped_at[indices],
        )

    def exceeds(self, index: int, log_cost: float) -> float:
        """Probability that the next run of a batch size costs more if it converges."""
        deviation = np.sqrt(self._variances[:, index] + self.noises**2)[self.group]
        return float(self.share @ normal_cdf((self.means[:, index] - log_cost) / deviation))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(size, n) and (size, 1), draws of the expected logarithms and of the noise."""
        component = rng.choice(len(self.share), size=size, p=self.share)
        group = self.group[component]
        _, count, features = self.factors.shape
        of_features = rng.standard_normal((size, features))
        draws = rng.standard_normal((size, count))
        for each in set(group.tolist()):
            rows = np.flatnonzero(group == each)
            smooth = of_features[rows] @ self.factors[each].T
            draws[rows] = np.sqrt(self.own[each]) * draws[rows] + smooth
        draws += self.means[component]
        noise = self.noises[group][:, None]
        # The mixture's components are not cut off where runs were stopped; their draws are.
        cut = np.flatnonzero(self.stopped > 0)
        least = self.stopped_at[cut] - noise / np.sqrt(self.stopped[cut])
        draws[:, cut] = np.maximum(draws[:, cut], least)
        return draws, noise


def lowest(values: Floats) -> int:
    """The index of the lowest value; the first one if others differ only by rounding errors.

    Such ties occur: with costs of only one of the two batch sizes in the middle, both are expected
    to cost the same.
    """
    return int(np.argmin(np.round(values, STATE_DECIMALS)))


def normal_cdf(value: Floats) -> Floats:
    """The normal distribution function to within 0.01, with heavier tails."""
    result: Floats = (1 + np.tanh(LOGISTIC_SCALE / 2 * value)) / 2
    return result


class _Grid(NamedTuple):
    """The curves that are considered, with `m` pairs of a residual's prior and a noise.

    Args:
        shapes: (k, n), expected logarithms, but for the offset.
        features: (m, n, r), whose coefficients are standard normal but for the last, the offset.
            The smooth part of the residual is a sum of bumps of equal width, whose covariance is
            `smooth^2 * exp(-d^2 / 2)`: to 1.5 % if their distance is an octave.
        rough: (m, n), variances of the rest of the residual.
        noises: (m,), standard deviations of a run's logarithm.
        log_share: (m, k), logarithms of the prior probabilities, up to a common summand.
    """

    shapes: Floats
    features: Floats
    rough: Floats
    noises: Floats
    log_share: Floats


def infer(
    curve: State, batch_sizes: Sequence[float], prior: Prior, elsewhere: Curve | None = None
) -> Posterior:
    """Compute the posterior of a curve.

    Args:
        curve: What is known of it, at least one value; see `cost_model.new_curve`.
        batch_sizes: Ascending.
        prior: What was assumed before.
        elsewhere: The curve on other hardware, if any is known.
    """
    values = tuple(curve["weight"]), tuple(curve["mean_log"])
    stops = tuple(curve["stopped"]), tuple(curve["stopped_mean_log"])
    deviations = curve["sum_of_squares"], curve["degrees_of_freedom"]
    return _infer(tuple(batch_sizes), *values, *stops, *deviations, prior, elsewhere)


@lru_cache(maxsize=64)  # a start asks several times, and a report again
def _infer(
    batch_sizes: tuple[float, ...],
    weights: tuple[float, ...],
    mean_logs: tuple[float, ...],
    stops: tuple[float, ...],
    stopped_mean_logs: tuple[float, ...],
    sum_of_squares: float,
    degrees_of_freedom: float,
    prior: Prior,
    elsewhere: Curve | None,
) -> Posterior:
    grid = _grid(batch_sizes, prior)
    if elsewhere is not None:
        grid = _with_elsewhere(grid, batch_sizes, prior.noises, elsewhere)
    shapes, features, rough, noises, log_share = grid
    variances = noises[:, None] ** 2
    weight = np.array(weights)
    seen = weight > 0
    # Of each mean logarithm around shape and features; (m, n).
    precision = weight / (weight * rough + variances)
    of_features = [1.0] * (features.shape[2] - 1) + [0.0]  # that of the offset is flat
    weighted = precision[:, :, None] * features
    inverse = np.diag(of_features) + features.transpose(0, 2, 1) @ weighted
    above_shape = np.where(seen, mean_logs - shapes, 0)
    # The inverse of the posterior precision is `triangles @ triangles^T`.
    triangles = np.linalg.inv(np.linalg.cholesky(inverse)).transpose(0, 2, 1)
    whitened = above_shape @ weighted @ triangles  # (m, k, r)
    misfit = precision @ np.square(above_shape).T - np.square(whitened).sum(axis=2)
    log_likelihood = log_share - 0.5 * (
        misfit
        - 2 * np.log(np.diagonal(triangles, axis1=1, axis2=2)).sum(axis=1, keepdims=True)
        + np.log1p(weight * rough / variances).sum(axis=1, keepdims=True)
        + (degrees_of_freedom + seen.sum()) * np.log(variances)
        + sum_of_squares / variances
    )
    # After a few runs most of the grid is very unlikely; continue with the rest.
    likely = log_likelihood > log_likelihood.max() - UNLIKELY
    group, shape = likely.nonzero()
    log_likelihood = log_likelihood[likely]
    alone = rough * precision  # the share of a batch size's own deviation that is estimated
    factors = (1 - alone)[:, :, None] * (features @ triangles)
    means = shapes[shape] + alone[group] * above_shape[shape]
    for each in set(group.tolist()):
        rows = np.flatnonzero(group == each)
        means[rows] += whitened[each, shape[rows]] @ factors[each].T
    own = rough * (1 - alone)

    stopped = np.array(stops)
    cut = np.flatnonzero(stopped > 0)
    if cut.size:
        spread = np.square(factors[:, cut]).sum(axis=2) + own[:, cut] + variances
        deviation = np.sqrt(spread)[group]
        stopped_at = np.array(stopped_mean_logs)[cut]
        standardized = (means[:, cut] - stopped_at) / deviation
        exceeds = normal_cdf(standardized)
        # The logarithm of `exceeds`, also where that is 0 by rounding.
        log_likelihood -= np.logaddexp(0, -LOGISTIC_SCALE * standardized) @ stopped[cut]
        # The slope of log Phi. More than two stops do not move the mean any further.
        slope = LOGISTIC_SCALE * (1 - exceeds) * np.minimum(stopped[cut], 2) / deviation
        step = np.einsum("kc,kcr->kr", slope, factors[:, cut][group])
        means = means + np.einsum("kr,knr->kn", step, factors[group])
        means[:, cut] += slope * own[:, cut][group]
    share = np.exp(log_likelihood - log_likelihood.max())
    share /= share.sum()
    return Posterior(
        share,
        means,
        group,
        factors,
        own,
        noises,
        np.where(seen, 0.0, stopped),
        np.array(stopped_mean_logs),
    )


@lru_cache(maxsize=256)
def _grid(batch_sizes: tuple[float, ...], prior: Prior) -> _Grid:
    """Curves with a knee, and one of any shape."""
    octave = np.log2(batch_sizes)
    knees = np.linspace(octave[0] - 1, octave[-1] + 1, KNEES)
    slope, knee = np.array(list(product(prior.slopes, knees))).T[:, :, None]
    shapes = np.vstack([np.logaddexp(0, slope * (octave - knee)), np.zeros(len(octave))])
    residuals = (*prior.knee_residuals, ANY_CURVE_RESIDUAL)
    features, rough, noises = _residuals(octave, residuals, prior.noises)
    with_knee = len(prior.knee_residuals) * len(prior.noises)
    log_share = np.zeros((len(noises), len(shapes)))
    log_share[:with_knee, -1] = log_share[with_knee:, :-1] = -np.inf
    return _Grid(shapes, features, rough, noises, log_share)


def _with_elsewhere(
    grid: _Grid, batch_sizes: tuple[float, ...], noises: tuple[float, ...], curve: Curve
) -> _Grid:
    """Add the curve on other hardware."""
    features, rough, of_each = _residuals(np.log2(batch_sizes), ELSEWHERE_RESIDUALS, noises)
    before, shapes = grid.log_share.shape
    log_share = np.full((before + len(of_each), shapes + 1), -np.inf)
    log_share[:before, :-1] = grid.log_share
    log_share[before:, -1] = math.log(SHARE_ELSEWHERE)
    return _Grid(
        np.vstack([grid.shapes, curve]),
        np.concatenate([grid.features, features]),
        np.concatenate([grid.rough, rough]),
        np.concatenate([grid.noises, of_each]),
        log_share,
    )


def _residuals(
    octave: Floats, priors: Sequence[tuple[float, float]], noises: Sequence[float]
) -> tuple[Floats, Floats, Floats]:
    """`_Grid.features`, `_Grid.rough` and `_Grid.noises` of these standard deviations."""
    pairs = [(*prior, noise) for prior, noise in product(priors, noises)]
    smooth, rough, of_each = np.array(pairs).T
    centers = np.arange(octave[0] - 2, octave[-1] + 3)
    bumps = (2 / np.pi) ** 0.25 * np.exp(-np.square(octave[:, None] - centers))
    offset = np.ones((len(pairs), len(octave), 1))
    features = np.concatenate([smooth[:, None, None] * bumps, offset], axis=2)
    return features, np.repeat(rough[:, None] ** 2, len(octave), axis=1), of_each
