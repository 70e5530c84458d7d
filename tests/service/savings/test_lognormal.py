"""Intervals of a log-normal distribution's mean, and what censored values say about it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies
from numpy.typing import NDArray
from zeus_service.savings import lognormal
from zeus_service.savings.lognormal import Sample

Floats = NDArray[np.float64]


@pytest.mark.parametrize(("degrees", "wanted"), [(2, 4.303), (5, 2.571), (20, 2.086), (1e6, 1.96)])
def test_students_quantile_is_that_of_the_tables(degrees: float, wanted: float) -> None:
    tolerance = 0.035 if degrees < 5 else 2e-3
    assert lognormal.t_quantile(degrees) == pytest.approx(wanted, rel=tolerance)


@pytest.mark.parametrize("at", [-8.0, -1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_the_mean_above_a_threshold_is_that_of_a_sample(at: float, deviation: float) -> None:
    logs = np.random.default_rng(0).normal(2.0, deviation, size=1_000_000)
    threshold = 2.0 + at * deviation
    mean = np.exp(logs[logs > threshold]).mean()
    assert lognormal.mean_above(threshold, 2.0, deviation) == pytest.approx(mean, rel=5e-3)


def test_far_out_it_stays_finite_and_above_the_threshold() -> None:
    assert math.exp(300) < lognormal.mean_above(300.0, 2.0, 0.2) < 1.2 * math.exp(300)


def test_the_mean_above_the_least_number_is_no_less() -> None:
    assert lognormal.mean_above(math.log(5e-324), -1e3, 5.0) >= 5e-324


@pytest.mark.parametrize(("mean", "deviation"), [(1000.0, 0.2), (0.0, 400.0), (800.0, 400.0)])
def test_costs_that_have_nothing_in_common_stay_finite(mean: float, deviation: float) -> None:
    assert 1 < lognormal.mean_above(0.0, mean, deviation) < 1e27


def test_an_error_is_that_of_the_logarithm_above_and_bounded() -> None:
    assert lognormal.error(0.1, 1e6) == pytest.approx(math.exp(0.196) - 1, rel=1e-3)
    assert lognormal.error(9.0, 2) == math.expm1(lognormal.WIDEST)


def sample(logs: Floats, *thresholds: float) -> tuple[Sample, float]:
    """Values as a sample if those above a threshold are censored there, and the others' squares.

    Each threshold is that of as many values as any other.
    """
    known, censored = [], []
    for part, threshold in zip(
        np.array_split(logs, max(len(thresholds), 1)), thresholds or [math.inf], strict=True
    ):
        known.append(part[part <= threshold])
        if number := len(part) - len(known[-1]):
            censored.append((number, threshold))
    whole = np.concatenate(known)
    squares = float(((whole - whole.mean()) ** 2).sum())
    return Sample(len(whole), whole.mean(), censored), squares


def test_whole_values_have_the_usual_estimates() -> None:
    logs = [np.log([100.0, 104.0, 98.0]), np.log([70.0, 73.0])]
    (first, squares), (second, more) = map(sample, logs)
    fit = lognormal.fit({"a": first, "b": second}, squares + more, 3.0)
    assert fit.deviation == pytest.approx(math.sqrt((squares + more) / 3))
    assert fit.means == pytest.approx({"a": logs[0].mean(), "b": logs[1].mean()})
    assert (fit.degrees, fit.sizes) == (3.0, {"a": 3.0, "b": 2.0})


@pytest.mark.parametrize("thresholds", [(0.7,), (0.0,), (-0.7,), (-2.0, 0.7), (-1.0, 0.5, 1.5)])
def test_censored_values_leave_estimates_as_uncertain_as_they_say(
    thresholds: tuple[float, ...],
) -> None:
    """24 %, 50 % and 76 % of values exceed the mean by 0.7, 0 and -0.7 standard deviations."""
    rng, found = np.random.default_rng(1), []
    for _ in range(1500):
        known, squares = sample(rng.normal(size=400), *thresholds)
        fit = lognormal.fit({"a": known}, squares, known.whole - 1.0)
        found.append((fit.means["a"], math.log(fit.deviation), fit.sizes["a"], fit.degrees))
    means, deviations, sizes, degrees = np.array(found).T
    assert means.mean() == pytest.approx(0.0, abs=0.02)
    assert deviations.mean() == pytest.approx(0.0, abs=0.02)
    assert means.std() == pytest.approx((1 / np.sqrt(sizes)).mean(), rel=0.08)
    assert deviations.std() == pytest.approx((1 / np.sqrt(2 * degrees)).mean(), rel=0.08)


def test_values_that_were_censored_at_once_change_nothing() -> None:
    known, squares = sample(np.log([100.0, 104.0, 98.0]))
    before = lognormal.fit({"a": known}, squares, 2.0)
    fit = lognormal.fit({"a": known._replace(censored=[(1000, -50.0)])}, squares, 2.0)
    assert fit.deviation == pytest.approx(before.deviation, rel=1e-3)
    assert (fit.degrees, fit.sizes, fit.means) == (2.0, before.sizes, before.means)


SAMPLES = strategies.builds(
    Sample,
    whole=strategies.integers(1, 10**6),
    mean=strategies.floats(-50, 50),
    censored=strategies.lists(
        strategies.tuples(strategies.integers(1, 10**6), strategies.floats(-50, 50)), max_size=4
    ),
)


@given(
    strategies.lists(SAMPLES, max_size=4), strategies.floats(1e-6, 1e6), strategies.floats(1, 1e6)
)
def test_whatever_is_censored_estimates_stay_finite_and_know_no_more_than_there_is(
    samples: list[Sample], squares: float, degrees: float
) -> None:
    named = {str(number): each for number, each in enumerate(samples)}
    fit = lognormal.fit(named, squares, degrees)
    assert all(map(math.isfinite, (fit.deviation, *fit.means.values(), *fit.sizes.values())))
    assert min(1.0, degrees) <= fit.degrees < math.inf
    for key, each in named.items():
        most = each.whole + sum(number for number, _ in each.censored)
        assert 0 < fit.sizes[key] <= most
