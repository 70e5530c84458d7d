"""What is believed about the cost of a run, over all batch sizes at once.

Pure Bayesian inference in closed form: no fit, no iteration, nothing that can fail to converge.

**A run that converges** with batch size `b` costs `exp(f(b) + noise)`, the noise normal with one
standard deviation `sigma` for all batch sizes.

**The curve is a valley** in octaves `x = log2(b)`: with small batches the cost falls as a power of
`b` (a device is used better), with large ones it rises as a power (more epochs are needed), so with
slopes `l` and `r` per octave around the bottom `z`

    h(x) = log((r * exp(-l * (x - z)) + l * exp(r * (x - z))) / (l + r)),    h(z) = h'(z) = 0
    f(x) = c + h(x) + g(x),    c flat,    g ~ GP(0, smooth^2 * exp(-d^2 / 2) + rough^2 * [d = 0])

`d` being the distance in octaves. That is why neighbours tell about each other, and why two higher
neighbours make a third one beyond them no longer interesting. The bottoms lie on a grid from one
octave below the smallest batch size to one above the largest; slopes and `sigma` on coarse grids of
general facts, all equally likely before the first run. Units of cost fall out with `c`.

Given a point of the grid, everything is a Gaussian process with a flat offset (Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7), of which the
number, mean and scatter of each batch size's log costs are sufficient statistics. The grid's points
are weighed by their marginal likelihoods (section 5.4.1): the belief is a mixture.

**A run that was stopped** at cost `e` says `cost > e`. A point of the grid is weighed by its
probability of that, and shifts by one moment-matching step (chapter 3 there, expectation
propagation) with the normal distribution function taken as the logistic one,
`Phi(t) = 1 / (1 + exp(-1.702 t))`, whose tails forgive more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLOPES = (0.2, 0.6, 1.5)
"""Natural logarithm of cost per octave."""
NOISES = (0.01, 0.03, 0.08, 0.2, 0.4)
"""Standard deviation of log cost between runs."""
SMOOTH, ROUGH = 0.1, 0.05
"""Standard deviations of what the valley does not explain: smooth, and of one batch size alone."""
BOTTOMS = 13
LEAST_WEIGHT = 1e-3
"""An observation that has been forgotten down to this is as good as none."""
UNLIKELY = 20.0
"""Points of the grid whose likelihood is smaller than the largest by this, in nats, are left out
before stopped runs are looked at."""
LEAST_SHARE = 1e-4
"""Points of the grid with less of the belief are left out."""


@dataclass(frozen=True)
class Evidence:
    """Statistics of the runs seen, per batch size, as tuples so that they can be a cache's key.

    Args:
        batch_sizes: Ascending.
        weight: Number of costs, the older ones perhaps counting less.
        level: Mean of their logarithms.
        stopped: Number of runs stopped because they cost too much.
        stopped_level: Mean logarithm of what those had cost by then.
        scatter: Sum over all batch sizes of squared deviations from `level`.
        freedom: How many deviations those are, less the means fitted.
    """

    batch_sizes: tuple[int, ...]
    weight: tuple[float, ...]
    level: tuple[float, ...]
    stopped: tuple[float, ...]
    stopped_level: tuple[float, ...]
    scatter: float
    freedom: float


@dataclass(frozen=True)
class Belief:
    """A mixture of Gaussians over the log costs of n batch sizes.

    Args:
        share: (k,), of each component; they add up to 1.
        means: (k, n), of the log costs.
        group: (k,), the component's place in `covariances` and `noises`.
        covariances: (m, n, n).
        noises: (m,), the standard deviation of a run's log cost.
    """

    share: Floats
    means: Floats
    group: NDArray[np.intp]
    covariances: Floats
    noises: Floats

    @cached_property
    def mean(self) -> Floats:
        """(n,), the expected log cost."""
        return self.share @ self.means

    @cached_property
    def variance(self) -> Floats:
        """(n,), of the expected log cost."""
        within = self._variances[self.group]
        return self.share @ (within + (self.means - self.mean) ** 2)

    @cached_property
    def noise_variance(self) -> float:
        """Of one run's log cost, at known expectation."""
        return float(self.share @ self.noises[self.group] ** 2)

    @cached_property
    def run_deviations(self) -> Floats:
        """(k, n), standard deviations of the log cost of the next run."""
        deviations: Floats = np.sqrt(self._variances + self.noises[:, None] ** 2)[self.group]
        return deviations

    @property
    def _variances(self) -> Floats:
        """(m, n), what `covariances` have on their diagonals."""
        return np.diagonal(self.covariances, axis1=1, axis2=2)

    def exceeds(self, index: int, log_cost: float) -> float:
        """Probability that the next run of a batch size costs more, if it converges."""
        scaled = (self.means[:, index] - log_cost) / self.run_deviations[:, index]
        return float(self.share @ normal_cdf(scaled))

    def draw(self, size: int, rng: np.random.Generator) -> Floats:
        """(size, n), draws of the expected log costs."""
        component = rng.choice(len(self.share), size=size, p=self.share)
        count = self.means.shape[1]
        floor = 1e-9 * np.trace(self.covariances, axis1=1, axis2=2)  # rounding
        factors = np.linalg.cholesky(self.covariances + floor[:, None, None] * np.eye(count))
        draws = rng.standard_normal((size, count))
        for group, factor in enumerate(factors):
            of_group = self.group[component] == group
            draws[of_group] = draws[of_group] @ factor.T
        return self.means[component] + draws


def normal_cdf(value: Floats) -> Floats:
    """The normal distribution function, within 0.01 and with heavier tails."""
    result: Floats = 1 / (1 + np.exp(-np.clip(1.702 * value, -500, 500)))
    return result


@lru_cache(maxsize=64)
def believe(evidence: Evidence) -> Belief:
    """The belief after the evidence, which holds at least one cost."""
    shapes, kernel, noises = _grid(evidence.batch_sizes)
    weight = np.array(evidence.weight)
    seen = np.flatnonzero(weight > LEAST_WEIGHT)
    variances = noises**2

    # In the letters of Rasmussen and Williams: V = K + noise, r = y - H beta; (noises, n, n).
    v = (
        kernel[np.ix_(seen, seen)]
        + np.eye(len(seen)) * (variances[:, None] / weight[seen])[:, None]
    )
    v_inverse = np.linalg.inv(v)
    ones = v_inverse.sum(2)
    offset_precision = ones.sum(1)
    # V^-1 r, as a matrix times y minus the shape.
    solver = v_inverse - ones[:, :, None] * (ones / offset_precision[:, None])[:, None, :]
    above_shape = np.array(evidence.level)[seen] - shapes[:, seen]
    solved = above_shape @ solver
    log_likelihood = -0.5 * (
        np.einsum("gks,ks->gk", solved, above_shape)
        + (
            np.linalg.slogdet(v)[1]
            + np.log(offset_precision)
            + evidence.freedom * np.log(variances)
            + evidence.scatter / variances
        )[:, None]
    )
    # After a few runs most of the grid is out of the question: the rest is about what is left.
    likely = log_likelihood > log_likelihood.max() - UNLIKELY
    used = likely.any(axis=1)
    group, shape = likely[used].nonzero()
    log_likelihood = log_likelihood[likely]
    v_inverse, offset_precision, noises = v_inverse[used], offset_precision[used], noises[used]
    across = kernel[:, seen]
    gain = across @ v_inverse
    unexplained = 1 - gain.sum(2)
    covariances = (
        kernel
        - gain @ across.T
        + unexplained[:, :, None] * (unexplained / offset_precision[:, None])[:, None, :]
    )
    offset = (above_shape @ (ones[used] / offset_precision[:, None]).T)[shape, group]
    means = shapes[shape] + offset[:, None] + solved[likely] @ across.T

    stopped = np.array(evidence.stopped)
    cut = np.flatnonzero(stopped > 0)
    if cut.size:
        deviation = np.sqrt(covariances[:, cut, cut] + noises[:, None] ** 2)[group]
        exceeds = normal_cdf((means[:, cut] - np.array(evidence.stopped_level)[cut]) / deviation)
        log_likelihood += np.log(exceeds) @ stopped[cut]
        # The slope of log Phi; more than two stops do not add up as if each were the first.
        slope = 1.702 * (1 - exceeds) * np.minimum(stopped[cut], 2)
        means = means + np.einsum("kc,kcn->kn", slope / deviation, covariances[:, cut][group])

    share = np.exp(log_likelihood - log_likelihood.max())
    share /= share.sum()
    kept = share > LEAST_SHARE
    return Belief(share[kept] / share[kept].sum(), means[kept], group[kept], covariances, noises)


@lru_cache(maxsize=256)
def _grid(batch_sizes: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """The grid: valleys (shapes, n), noises (noises,); and the kernel of the residual (n, n)."""
    octave = np.log2(batch_sizes)
    bottoms = np.linspace(octave[0] - 1, octave[-1] + 1, BOTTOMS)
    left, right, bottom = np.array(list(product(SLOPES, SLOPES, bottoms))).T[:, :, None]
    beyond = octave - bottom
    shapes = np.logaddexp(
        np.log(right / (left + right)) - left * beyond,
        np.log(left / (left + right)) + right * beyond,
    )
    distance = octave[:, None] - octave
    kernel = SMOOTH**2 * np.exp(-(distance**2) / 2) + ROUGH**2 * np.eye(len(octave))
    return shapes, kernel, np.array(NOISES)
