"""The posterior of a curve is the one that the model claims."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus_service.bandit import curve_model
from zeus_service.bandit.cost_model import EPOCH_COST, EPOCHS, add_run, add_stopped_run, new_curve
from zeus_service.bandit.curve_model import Curve, Floats, Posterior, Prior, infer
from zeus_service.bandit.policy import State

SIZES = (8, 16, 32, 64, 128)
runs = st.lists(st.tuples(st.integers(0, 4), st.floats(-1, 1)), min_size=1, max_size=12)
priors = st.sampled_from([EPOCHS, EPOCH_COST])


Runs = list[tuple[int, float]]
"""Each with the index of its batch size, and the logarithm of its value."""


def curve_of(values: Runs, stops: Runs | None = None, count: int = len(SIZES)) -> State:
    """What is known after some runs, and others that were stopped before they had their value."""
    state = new_curve(count)
    for index, value in values:
        add_run(state, index, value)
    for index, value in stops or []:
        add_stopped_run(state, index, value, 1.0)
    return state


def posterior_of(
    values: Runs,
    stops: Runs | None = None,
    prior: Prior = EPOCHS,
    elsewhere: Curve | None = None,
) -> Posterior:
    return infer(curve_of(values, stops), SIZES, prior, elsewhere)


def by_brute_force(
    values: list[tuple[int, float]], prior: Prior, elsewhere: Curve | None = None
) -> tuple[Floats, Floats]:
    """Mean and variance from all single runs, with an offset of a large variance."""
    octave = np.log2(SIZES)
    index = np.array([i for i, _ in values])
    y = np.array([value for _, value in values])
    distance = octave[:, None] - octave

    def covariance(smooth: float, rough: float) -> Floats:
        smooth_part = smooth**2 * np.exp(-(distance**2) / 2)
        return np.asarray(smooth_part + rough**2 * np.eye(len(SIZES)) + 1e5)

    knees = np.linspace(octave[0] - 1, octave[-1] + 1, curve_model.KNEES)
    curves = [
        (1.0, np.log1p(np.exp(slope * (octave - knee))), covariance(*residual))
        for slope, knee, residual in product(prior.slopes, knees, prior.knee_residuals)
    ]
    curves += [(1.0, np.zeros(len(SIZES)), covariance(*curve_model.ANY_CURVE_RESIDUAL))]
    curves += [
        (curve_model.SHARE_ELSEWHERE, np.array(elsewhere), covariance(*residual))
        for residual in (curve_model.ELSEWHERE_RESIDUALS if elsewhere else ())
    ]
    likelihoods, means, variances = [], [], []
    for (share, shape, of_shape), noise in product(curves, prior.noises):
        of_runs = of_shape[np.ix_(index, index)] + noise**2 * np.eye(len(y))
        gain = np.linalg.solve(of_runs, of_shape[index]).T
        residual = y - shape[index]
        likelihoods.append(
            math.log(share)
            - 0.5 * residual @ np.linalg.solve(of_runs, residual)
            - 0.5 * np.linalg.slogdet(of_runs)[1]
        )
        means.append(shape + gain @ residual)
        variances.append(np.diag(of_shape - gain @ of_shape[index]))
    weights = np.exp(np.array(likelihoods) - max(likelihoods))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    return mean, weights @ (np.array(variances) + (np.array(means) - mean) ** 2)


@given(
    runs,
    st.tuples(priors, st.none())
    | st.tuples(st.just(EPOCH_COST), st.tuples(*[st.floats(-1, 1)] * len(SIZES))),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_the_grid_has_the_posterior_of_all_single_runs(
    values: list[tuple[int, float]], known: tuple[Prior, tuple[float, ...] | None]
) -> None:
    prior, elsewhere = known
    posterior = posterior_of(values, prior=prior, elsewhere=elsewhere)
    mean, variance = by_brute_force(values, prior, elsewhere)
    assert posterior.mean == pytest.approx(mean, abs=0.04)
    assert posterior.variance == pytest.approx(variance, abs=0.03, rel=0.05)


@given(
    st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.floats(-745, 30)), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 19), st.floats(-745, 30)), max_size=10),
    priors,
)
@settings(max_examples=200, deadline=None)
def test_a_belief_is_finite_whatever_was_seen(
    sizes: set[int],
    values: list[tuple[int, float]],
    stops: list[tuple[int, float]],
    prior: Prior,
) -> None:
    count = len(sizes)
    given = ([(i % count, y) for i, y in runs] for runs in (values, stops))
    posterior = infer(curve_of(*given, count), sorted(sizes), prior)
    assert np.isfinite(posterior.mean).all()
    assert np.isfinite(posterior.variance).all()
    assert (posterior.variance >= 0).all()
    assert posterior.share.sum() == pytest.approx(1)
    assert np.isfinite(np.hstack(posterior.draw(64, np.random.default_rng(0)))).all()


def test_draws_have_the_moments_of_the_posterior() -> None:
    posterior = posterior_of([(2, 0.0), (3, 0.3), (3, 0.25)])
    draws, noises = posterior.draw(200_000, np.random.default_rng(0))
    assert draws.mean(axis=0) == pytest.approx(posterior.mean, abs=0.01)
    assert np.mean(noises**2) == pytest.approx(posterior.noise_variance, rel=0.02)
    assert draws.var(axis=0) == pytest.approx(posterior.variance, rel=0.03)


def test_beyond_a_dearer_neighbour_it_is_estimated_to_be_dearer_still() -> None:
    posterior = posterior_of([(1, 0.0), (2, 0.0), (2, 0.02), (3, 0.5)])
    assert posterior.mean[4] > posterior.mean[3] > 0.4


def test_the_noise_is_learned_from_all_batch_sizes_together() -> None:
    rng = np.random.default_rng(0)
    for noise in (0.01, 0.08, 0.4):
        pairs = [(index, float(rng.normal(0, noise))) for index in range(5) for _ in range(8)]
        assert posterior_of(pairs).noise_variance ** 0.5 == pytest.approx(noise, rel=0.3)


def test_one_stop_of_a_batch_size_that_has_converged_does_not_make_it_look_twice_as_dear() -> None:
    seen = [(index, 0.0) for index in range(5) for _ in range(5)]
    stopped = posterior_of(seen, [(4, math.log(2))])
    draws, _ = stopped.draw(2000, np.random.default_rng(0))
    assert abs(draws[:, 4].mean()) < 0.1


def truth_of(rng: np.random.Generator) -> tuple[Floats, float]:
    """Log epochs with a sharp knee that is not on the grid, and their noise."""
    x = np.log2(SIZES) - rng.uniform(2, 8)
    slope = np.exp(rng.uniform(math.log(0.1), math.log(1.0)))
    truth = np.maximum(slope * x, 0) + rng.normal(0, 0.05, len(SIZES))
    return truth, float(np.exp(rng.uniform(-4, -1.5)))


def seen_of(truth: Floats, noise: float, rng: np.random.Generator, count: int) -> Posterior:
    tried = rng.choice(len(SIZES), size=3, replace=False)
    indices = [int(rng.choice(tried)) for _ in range(count)]
    return posterior_of([(i, float(truth[i] + rng.normal(0, noise))) for i in indices])


@pytest.mark.parametrize("count", [2, 5, 20])
def test_nineteen_truths_of_twenty_lie_within_two_deviations(count: int) -> None:
    rng, within = np.random.default_rng(count), []
    for _ in range(200):
        truth, noise = truth_of(rng)
        posterior = seen_of(truth, noise, rng, count)
        within.extend(np.abs(truth - posterior.mean) < 2 * np.sqrt(posterior.variance))
    assert 0.9 < np.mean(within) <= 1
