"""Intervals of a log-normal distribution's mean, and what lies beyond a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies
from numpy.typing import NDArray
from zeus_service import lognormal
from zeus_service.lognormal import Sample

Floats = NDArray[np.float64]


@pytest.mark.parametrize(("degrees", "wanted"), [(2, 4.303), (5, 2.571), (20, 2.086), (1e6, 1.96)])
def test_students_quantile_is_that_of_the_tables(degrees: float, wanted: float) -> None:
    tolerance = 0.035 if degrees < 5 else 2e-3
    assert lognormal.t_quantile(degrees) == pytest.approx(wanted, rel=tolerance)


@pytest.mark.parametrize("at", [-8.0, -1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_what_lies_beyond_a_value_has_the_mean_of_a_sample(at: float, deviation: float) -> None:
    logs = np.random.default_rng(0).normal(size=1_000_000)
    logs = logs[logs > at]
    mean = np.exp(deviation * (logs - at)).mean()
    assert lognormal.beyond(at, deviation) == pytest.approx(mean, rel=5e-3)


def test_far_out_it_stays_finite_and_beyond_the_value() -> None:
    assert 1 < lognormal.beyond(1e9, 0.2) < 1.2


@pytest.mark.parametrize(("at", "deviation"), [(-5000.0, 0.2), (0.0, 400.0), (-2.0, 400.0)])
def test_costs_that_have_nothing_in_common_stay_finite(at: float, deviation: float) -> None:
    assert 1 < lognormal.beyond(at, deviation) < 1e23


def test_an_error_is_that_of_the_logarithm_above_and_bounded() -> None:
    assert lognormal.error(0.1, 1e6) == pytest.approx(math.exp(0.196) - 1, rel=1e-3)
    assert lognormal.error(9.0, 2) == math.expm1(lognormal.WIDEST)


def sample(logs: Floats, cut_at: float = math.inf) -> tuple[Sample, float]:
    """Values as a sample if those beyond one are cut off there, and the others' squares."""
    whole = logs[logs <= cut_at]
    cut = len(logs) - len(whole)
    return Sample(len(whole), whole.mean(), cut, cut_at if cut else 0.0), float(
        ((whole - whole.mean()) ** 2).sum()
    )


def test_whole_values_have_the_usual_estimates() -> None:
    logs = [np.log([100.0, 104.0, 98.0]), np.log([70.0, 73.0])]
    (first, squares), (second, more) = map(sample, logs)
    fit = lognormal.fit({"a": first, "b": second}, squares + more, 3.0)
    assert fit.deviation == pytest.approx(math.sqrt((squares + more) / 3))
    assert fit.means == pytest.approx({"a": logs[0].mean(), "b": logs[1].mean()})
    assert (fit.degrees, fit.sizes) == (3.0, {"a": 3.0, "b": 2.0})


@pytest.mark.parametrize("cut_at", [0.7, 0.0, -0.7])
def test_values_that_were_cut_off_leave_estimates_as_uncertain_as_they_say(cut_at: float) -> None:
    """Cut at 0.7, 0 and -0.7 standard deviations above the mean: 24 %, 50 % and 76 % of them."""
    rng, found = np.random.default_rng(1), []
    for _ in range(1500):
        known, squares = sample(rng.normal(size=400), cut_at)
        fit = lognormal.fit({"a": known}, squares, known.whole - 1.0)
        found.append((fit.means["a"], math.log(fit.deviation), fit.sizes["a"], fit.degrees))
    means, deviations, sizes, degrees = np.array(found).T
    assert means.mean() == pytest.approx(0.0, abs=0.02)
    assert deviations.mean() == pytest.approx(0.0, abs=0.02)
    assert means.std() == pytest.approx((1 / np.sqrt(sizes)).mean(), rel=0.08)
    assert deviations.std() == pytest.approx((1 / np.sqrt(2 * degrees)).mean(), rel=0.08)


def test_values_that_were_cut_off_at_once_change_nothing() -> None:
    known, squares = sample(np.log([100.0, 104.0, 98.0]))
    before = lognormal.fit({"a": known}, squares, 2.0)
    fit = lognormal.fit({"a": known._replace(cut=1000, cut_at=-50.0)}, squares, 2.0)
    assert fit.deviation == pytest.approx(before.deviation, rel=1e-3)
    assert (fit.degrees, fit.sizes, fit.means) == (2.0, before.sizes, before.means)


SAMPLES = strategies.builds(
    Sample,
    whole=strategies.integers(1, 10**6),
    mean=strategies.floats(-50, 50),
    cut=strategies.integers(0, 10**6),
    cut_at=strategies.floats(-50, 50),
)


@given(
    strategies.lists(SAMPLES, max_size=4), strategies.floats(1e-6, 1e6), strategies.floats(1, 1e6)
)
def test_whatever_was_cut_off_estimates_stay_finite_and_know_no_more_than_there_is(
    samples: list[Sample], squares: float, degrees: float
) -> None:
    named = {str(number): each for number, each in enumerate(samples)}
    fit = lognormal.fit(named, squares, degrees)
    assert all(map(math.isfinite, (fit.deviation, *fit.means.values(), *fit.sizes.values())))
    assert min(1.0, degrees) <= fit.degrees < math.inf
    for key, each in named.items():
        assert 0 < fit.sizes[key] <= each.whole + each.cut
