"""The belief about the cost of a run, over all batch sizes at once.

Bayesian inference in closed form: no fit and no iteration, so nothing that can fail to converge.

**A run that converges** with batch size `b` costs `exp(f(b) + noise)`, the noise normal with one
standard deviation `sigma` for all batch sizes.

**The curve is a valley** in octaves `x = log2(b)`: for small batches the cost falls as a power of
`b` (better use of the device), for large ones it rises as a power of `b` (more epochs). With slopes
`l` and `r` per octave on the left and right of the bottom `z`

    h(x) = log((r * exp(-l * (x - z)) + l * exp(r * (x - z))) / (l + r)),    h(z) = h'(z) = 0
    f(x) = c + h(x) + g(x),    c flat,    g ~ GP(0, smooth^2 * exp(-d^2 / 2) + rough^2 * [d = 0])

with `d` the distance in octaves. So a run is evidence about the neighbours of its batch size, too.
The bottoms lie on a grid from one octave below the smallest batch size to one above the largest;
slopes and `sigma` lie on coarse grids. All points are equally likely before the first run. The unit
of cost does not matter, because of `c`.

**A curve of any shape** is one more point of the grid, with each `sigma`: no valley, `h = 0`, and a
larger residual. When costs refute every valley, the belief is there, and batch sizes are almost
independent of each other.

At each point of the grid, `f` is a Gaussian process with a flat offset (Rasmussen and Williams,
"Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7); the number, mean and sum of
squares of each batch size's log costs are sufficient statistics. The points are weighted by their
marginal likelihoods (section 5.4.1): the belief is a mixture.

**A run that was stopped** at cost `e` would have cost more. Each point's weight is multiplied by
its probability of that, and its mean moves by one step of moment matching (chapter 3 there,
expectation propagation). The normal distribution function is approximated by the logistic one,
`Phi(t) = 1 / (1 + exp(-1.702 t))`, whose heavier tails are more tolerant.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from zeus_service.policies.base import STATE_DECIMALS

Floats = NDArray[np.float64]

SLOPES = (0.2, 0.6, 1.5)
"""Natural logarithm of cost per octave."""
NOISES = (0.01, 0.03, 0.08, 0.2, 0.4)
"""Standard deviation of log cost between runs."""
OF_VALLEY, OF_ANY_CURVE = (0.1, 0.05), (0.4, 0.2)
"""Standard deviations of the residual `g`: `smooth` and `rough`."""
BOTTOMS = 13
LEAST_WEIGHT = 1e-3
"""A batch size whose weight has decayed to this has no evidence."""
UNLIKELY = 20.0
"""Before stopped runs are considered, points of the grid are left out whose log likelihood is this
much below the largest."""
LEAST_SHARE = 1e-4
"""Points of the grid with a smaller share of the belief are left out."""


@dataclass(frozen=True)
class Evidence:
    """Statistics of the observed runs for each batch size; tuples, so that they can be cache keys.

    Args:
        batch_sizes: Ascending.
        weight: Number of costs; older ones may count less.
        mean_log_cost: Mean of their logarithms.
        stopped: Number of runs stopped because they cost too much.
        stopped_mean_log_cost: Mean logarithm of their costs when they were stopped.
        sum_of_squares: Sum over all batch sizes of squared deviations from `mean_log_cost`.
        degrees_of_freedom: Number of those deviations, less the number of means.
    """

    batch_sizes: tuple[int, ...]
    weight: tuple[float, ...]
    mean_log_cost: tuple[float, ...]
    stopped: tuple[float, ...]
    stopped_mean_log_cost: tuple[float, ...]
    sum_of_squares: float
    degrees_of_freedom: float


@dataclass(frozen=True)
class Belief:
    """A mixture of Gaussians over the log costs of n batch sizes.

    Args:
        share: (k,), the weights of the components; they add up to 1.
        means: (k, n), the expected log costs.
        group: (k,), each component's index in `covariances` and `noises`.
        covariances: (m, n, n), of the expected log costs.
        noises: (m,), standard deviations of a run's log cost.
    """

    share: Floats
    means: Floats
    group: NDArray[np.intp]
    covariances: Floats
    noises: Floats

    @cached_property
    def mean(self) -> Floats:
        """(n,), the expected log costs."""
        return self.share @ self.means

    @cached_property
    def variance(self) -> Floats:
        """(n,), the variances of the expected log costs."""
        return self.share @ (self._variances[self.group] + (self.means - self.mean) ** 2)

    @cached_property
    def noise_variance(self) -> float:
        """The variance of a run's log cost around its expectation."""
        return float(self.share @ self.noises[self.group] ** 2)

    @cached_property
    def run_deviations(self) -> Floats:
        """(k, n), standard deviations of the next run's log cost."""
        deviations: Floats = np.sqrt(self._variances + self.noises[:, None] ** 2)[self.group]
        return deviations

    @property
    def _variances(self) -> Floats:
        """(m, n), the diagonals of `covariances`."""
        return np.diagonal(self.covariances, axis1=1, axis2=2)

    def exceeds(self, index: int, log_cost: float) -> float:
        """Probability that the next run of a batch size costs more if it converges."""
        scaled = (self.means[:, index] - log_cost) / self.run_deviations[:, index]
        return float(self.share @ normal_cdf(scaled))

    def draw(self, size: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """(size, n) and (size, 1), draws of the expected log costs and of the noise."""
        component = np.sort(rng.choice(len(self.share), size=size, p=self.share))
        group, starts = np.unique(self.group[component], return_index=True)
        count = self.means.shape[1]
        covariances = self.covariances[group]
        # The jitter makes up for rounding errors that leave a covariance indefinite.
        jitter = 1e-9 * np.trace(covariances, axis1=1, axis2=2)
        factors = np.linalg.cholesky(covariances + jitter[:, None, None] * np.eye(count))
        draws = rng.standard_normal((size, count))
        for factor, of_group in zip(factors, np.split(np.arange(size), starts[1:]), strict=True):
            draws[of_group] = draws[of_group] @ factor.T
        return self.means[component] + draws, self.noises[self.group[component]][:, None]


def lowest(values: Floats) -> int:
    """The index of the lowest value; the first one if others differ only by rounding errors.

    Such ties occur: with costs of only one of the two batch sizes in the middle, both are expected
    to cost the same.
    """
    return int(np.argmin(np.round(values, STATE_DECIMALS)))


def normal_cdf(value: Floats) -> Floats:
    """The normal distribution function to within 0.01, with heavier tails."""
    result: Floats = 1 / (1 + np.exp(-np.clip(1.702 * value, -500, 500)))
    return result


@lru_cache(maxsize=64)
def believe(evidence: Evidence) -> Belief:
    """Compute the belief from evidence that has at least one cost."""
    parts = [_part(evidence, *each) for each in _curves(evidence.batch_sizes)]
    log_likelihood = np.concatenate([part[0] for part in parts])
    share = np.exp(log_likelihood - log_likelihood.max())
    share /= share.sum()
    kept = share > LEAST_SHARE
    group = np.concatenate([len(NOISES) * i + part[2] for i, part in enumerate(parts)])
    used, group = np.unique(group[kept], return_inverse=True)
    return Belief(
        share[kept] / share[kept].sum(),
        np.concatenate([part[1] for part in parts])[kept],
        group,
        np.concatenate([part[3] for part in parts])[used],
        np.tile(NOISES, len(parts))[used],
    )


def _part(
    evidence: Evidence, shapes: Floats, kernel: Floats
) -> tuple[Floats, Floats, NDArray[np.intp], Floats]:
    """Compute the belief with some shapes and one kernel of the residual.

    Returns:
        (k,), log likelihoods; (k, n), means; (k,), each one's index in `NOISES`; and
        (noises, n, n), covariances.
    """
    noises = np.array(NOISES)
    weight = np.array(evidence.weight)
    seen = np.flatnonzero(weight > LEAST_WEIGHT)
    variances = noises**2

    # In the notation of Rasmussen and Williams, V = K + noise and r = y - H beta; (noises, n, n).
    v = (
        kernel[np.ix_(seen, seen)]
        + np.eye(len(seen)) * (variances[:, None] / weight[seen])[:, None]
    )
    v_inverse = np.linalg.inv(v)
    ones = v_inverse.sum(2)
    offset_precision = ones.sum(1)
    # V^-1 r is this matrix times (y - shape).
    solver = v_inverse - ones[:, :, None] * (ones / offset_precision[:, None])[:, None, :]
    above_shape = np.array(evidence.mean_log_cost)[seen] - shapes[:, seen]
    solved = above_shape @ solver
    log_likelihood = -0.5 * (
        np.einsum("gks,ks->gk", solved, above_shape)
        + (
            np.linalg.slogdet(v)[1]
            + np.log(offset_precision)
            + evidence.degrees_of_freedom * np.log(variances)
            + evidence.sum_of_squares / variances
        )[:, None]
    )
    # After a few runs most of the grid is very unlikely; continue with the rest.
    likely = log_likelihood > log_likelihood.max() - UNLIKELY
    group, shape = likely.nonzero()
    log_likelihood = log_likelihood[likely]
    across = kernel[:, seen]
    gain = across @ v_inverse
    unexplained = 1 - gain.sum(2)
    covariances = (
        kernel
        - gain @ across.T
        + unexplained[:, :, None] * (unexplained / offset_precision[:, None])[:, None, :]
    )
    offset = (above_shape @ (ones / offset_precision[:, None]).T)[shape, group]
    means = shapes[shape] + offset[:, None] + solved[likely] @ across.T

    stopped = np.array(evidence.stopped)
    cut = np.flatnonzero(stopped > 0)
    if cut.size:
        deviation = np.sqrt(covariances[:, cut, cut] + noises[:, None] ** 2)[group]
        stopped_at = np.array(evidence.stopped_mean_log_cost)[cut]
        exceeds = normal_cdf((means[:, cut] - stopped_at) / deviation)
        log_likelihood += np.log(exceeds) @ stopped[cut]
        # The slope of log Phi. More than two stops do not move the mean any further.
        slope = 1.702 * (1 - exceeds) * np.minimum(stopped[cut], 2)
        means = means + np.einsum("kc,kcn->kn", slope / deviation, covariances[:, cut][group])
    return log_likelihood, means, group, covariances


@lru_cache(maxsize=256)
def _curves(batch_sizes: tuple[int, ...]) -> tuple[tuple[Floats, Floats], ...]:
    """Valleys (shapes, n) with the kernel of the residual (n, n); and a flat curve with its own."""
    octave = np.log2(batch_sizes)
    bottoms = np.linspace(octave[0] - 1, octave[-1] + 1, BOTTOMS)
    left, right, bottom = np.array(list(product(SLOPES, SLOPES, bottoms))).T[:, :, None]
    beyond = octave - bottom
    valleys = np.logaddexp(
        np.log(right / (left + right)) - left * beyond,
        np.log(left / (left + right)) + right * beyond,
    )
    distance = octave[:, None] - octave
    valley_kernel, flat_kernel = (
        smooth**2 * np.exp(-(distance**2) / 2) + rough**2 * np.eye(len(octave))
        for smooth, rough in (OF_VALLEY, OF_ANY_CURVE)
    )
    return (valleys, valley_kernel), (np.zeros((1, len(octave))), flat_kernel)
