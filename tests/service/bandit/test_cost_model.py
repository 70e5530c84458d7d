"""The posterior of the costs is the one that the model claims."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus_service.bandit import cost_model
from zeus_service.bandit.cost_model import Evidence, Floats, Posterior, infer

SIZES = (8, 16, 32, 64, 128)
runs = st.lists(st.tuples(st.integers(0, 4), st.floats(-1, 1)), min_size=1, max_size=12)


def evidence(
    log_costs: list[tuple[int, float]],
    stops: list[tuple[int, float]] | None = None,
    sizes: tuple[int, ...] = SIZES,
) -> Evidence:
    """The statistics of runs, each an index and the logarithm of its cost."""
    by_size = [[y for index, y in log_costs if index == i] for i in range(len(sizes))]
    stopped = [[y for index, y in stops or [] if index == i] for i in range(len(sizes))]
    return Evidence(
        batch_sizes=sizes,
        weight=tuple(float(len(ys)) for ys in by_size),
        mean_log_cost=tuple(float(np.mean(ys)) if ys else 0.0 for ys in by_size),
        stopped=tuple(float(len(ys)) for ys in stopped),
        stopped_mean_log_cost=tuple(float(np.mean(ys)) if ys else 0.0 for ys in stopped),
        sum_of_squares=float(sum(np.var(ys) * len(ys) for ys in by_size if ys)),
        degrees_of_freedom=float(sum(len(ys) - 1 for ys in by_size if ys)),
    )


def by_brute_force(log_costs: list[tuple[int, float]]) -> tuple[Floats, Floats]:
    """Mean and variance from all single runs, with an offset of a large variance."""
    octave = np.log2(SIZES)
    index = np.array([i for i, _ in log_costs])
    y = np.array([value for _, value in log_costs])
    distance = octave[:, None] - octave
    of_valley, of_any = (
        smooth**2 * np.exp(-(distance**2) / 2) + rough**2 * np.eye(len(SIZES)) + 1e5
        for smooth, rough in (cost_model.OF_VALLEY, cost_model.OF_ANY_CURVE)
    )
    bottoms = np.linspace(octave[0] - 1, octave[-1] + 1, cost_model.BOTTOMS)
    valleys = [
        np.log((right * np.exp(-left * x) + left * np.exp(right * x)) / (left + right))
        for left, right, bottom in product(cost_model.SLOPES, cost_model.SLOPES, bottoms)
        for x in [octave - bottom]
    ]
    curves = [*((valley, of_valley) for valley in valleys), (np.zeros(len(SIZES)), of_any)]
    likelihoods, means, variances = [], [], []
    for (valley, prior), noise in product(curves, cost_model.NOISES):
        covariance = prior[np.ix_(index, index)] + noise**2 * np.eye(len(y))
        gain = np.linalg.solve(covariance, prior[index]).T
        residual = y - valley[index]
        likelihoods.append(
            -0.5 * residual @ np.linalg.solve(covariance, residual)
            - 0.5 * np.linalg.slogdet(covariance)[1]
        )
        means.append(valley + gain @ residual)
        variances.append(np.diag(prior - gain @ prior[index]))
    share = np.exp(np.array(likelihoods) - max(likelihoods))
    share /= share.sum()
    mean = share @ np.array(means)
    return mean, share @ (np.array(variances) + (np.array(means) - mean) ** 2)


@given(runs)
@settings(max_examples=30, deadline=None, derandomize=True)  # few costs differ by more: 2 in 100
def test_the_grid_has_the_posterior_of_all_single_runs(log_costs: list[tuple[int, float]]) -> None:
    posterior = infer(evidence(log_costs))
    mean, variance = by_brute_force(log_costs)
    assert posterior.mean == pytest.approx(mean, abs=0.01)
    assert posterior.variance == pytest.approx(variance, abs=0.01, rel=0.05)


@given(runs, st.floats(-30, 30))
@settings(max_examples=50, deadline=None)
def test_the_unit_of_cost_does_not_matter(log_costs: list[tuple[int, float]], unit: float) -> None:
    posterior = infer(evidence(log_costs))
    other = infer(evidence([(index, y + unit) for index, y in log_costs]))
    assert other.mean - unit == pytest.approx(posterior.mean, abs=1e-3)
    assert other.variance == pytest.approx(posterior.variance, abs=1e-3)


@given(
    st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.floats(-745, 30)), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 19), st.floats(-745, 30)), max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_a_belief_is_finite_whatever_was_seen(
    sizes: set[int], log_costs: list[tuple[int, float]], stops: list[tuple[int, float]]
) -> None:
    count = len(sizes)
    given = evidence(
        [(i % count, y) for i, y in log_costs],
        [(i % count, y) for i, y in stops],
        tuple(sorted(sizes)),
    )
    posterior = infer(given)
    assert np.isfinite(posterior.mean).all()
    assert np.isfinite(posterior.variance).all()
    assert (posterior.variance >= 0).all()
    assert posterior.share.sum() == pytest.approx(1)
    assert np.isfinite(np.hstack(posterior.draw(64, np.random.default_rng(0)))).all()


def test_draws_have_the_moments_of_the_posterior() -> None:
    posterior = infer(evidence([(2, 0.0), (3, 0.3), (3, 0.25)]))
    draws, noises = posterior.draw(200_000, np.random.default_rng(0))
    assert draws.mean(axis=0) == pytest.approx(posterior.mean, abs=0.01)
    assert np.mean(noises**2) == pytest.approx(posterior.noise_variance, rel=0.02)
    assert draws.var(axis=0) == pytest.approx(posterior.variance, rel=0.03)


def test_beyond_a_dearer_neighbour_it_is_estimated_to_be_dearer_still() -> None:
    posterior = infer(evidence([(1, 0.5), (2, 0.0), (2, 0.02), (3, 0.0)]))
    assert posterior.mean[0] > posterior.mean[1] > 0.4


def test_the_noise_is_learned_from_all_batch_sizes_together() -> None:
    rng = np.random.default_rng(0)
    for noise in (0.01, 0.08, 0.4):
        pairs = [(index, float(rng.normal(0, noise))) for index in range(5) for _ in range(8)]
        assert infer(evidence(pairs)).noise_variance ** 0.5 == pytest.approx(noise, rel=0.3)


def test_a_stopped_run_raises_the_belief_above_where_it_stopped() -> None:
    seen = [(2, 0.0), (2, 0.05)]
    before, after = (infer(evidence(seen, stops)) for stops in ([], [(4, 0.7)]))
    assert before.mean[4] < 0.7 < after.mean[4]
    assert after.mean[2] == pytest.approx(before.mean[2], abs=0.05)
    assert before.exceeds(4, 0.7) < after.exceeds(4, 0.7)


def test_the_distribution_function_is_nearly_the_normal_one() -> None:
    values = np.linspace(-4, 4, 81)
    exact = [0.5 * math.erfc(-value / math.sqrt(2)) for value in values]
    assert cost_model.normal_cdf(values) == pytest.approx(exact, abs=0.01)


def truth_of(rng: np.random.Generator) -> tuple[Floats, float]:
    """Log costs of a valley that is not on the grid, and its noise."""
    x = np.log2(SIZES) - rng.uniform(2, 8)
    left, right = np.exp(rng.uniform(math.log(0.1), math.log(1.0), 2))
    valley = np.where(x < 0, -left * x, right * x)
    return valley + rng.normal(0, 0.05, len(SIZES)), float(np.exp(rng.uniform(-4, -1.5)))


def seen_of(truth: Floats, noise: float, rng: np.random.Generator, count: int) -> Posterior:
    tried = rng.choice(len(SIZES), size=3, replace=False)
    indices = [int(rng.choice(tried)) for _ in range(count)]
    return infer(evidence([(i, float(truth[i] + rng.normal(0, noise))) for i in indices]))


@pytest.mark.parametrize("count", [2, 5, 20])
def test_nineteen_truths_of_twenty_lie_within_two_deviations(count: int) -> None:
    rng, within = np.random.default_rng(count), []
    for _ in range(200):
        truth, noise = truth_of(rng)
        posterior = seen_of(truth, noise, rng, count)
        within.extend(np.abs(truth - posterior.mean) < 2 * np.sqrt(posterior.variance))
    assert 0.9 < np.mean(within) <= 1


def test_evidence_of_two_valleys_overrules_the_belief_in_one() -> None:
    truth, within = np.array([0.0, 0.5, 0.9, 0.4, 0.05]), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        pairs = [(i, float(truth[i] + rng.normal(0, 0.05))) for i in range(5) for _ in range(6)]
        posterior = infer(evidence(pairs))
        deviation = np.sqrt(posterior.variance)
        within.append(np.abs(truth - posterior.mean) < 2 * deviation)
        assert (deviation < 0.04).all()
    # The unit of cost is known by these means, too: all of them may be off together.
    assert 0.88 < np.mean(within) <= 1
