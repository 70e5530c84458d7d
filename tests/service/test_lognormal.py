"""Intervals of a log-normal distribution's mean, and what lies beyond a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from zeus_service import lognormal


@pytest.mark.parametrize(("degrees", "wanted"), [(2, 4.303), (5, 2.571), (20, 2.086), (1e6, 1.96)])
def test_students_quantile_is_that_of_the_tables(degrees: float, wanted: float) -> None:
    tolerance = 0.035 if degrees < 5 else 2e-3
    assert lognormal.t_quantile(degrees) == pytest.approx(wanted, rel=tolerance)


@pytest.mark.parametrize("at", [-8.0, -1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_what_lies_beyond_a_value_has_the_mean_and_variance_of_a_sample(
    at: float, deviation: float
) -> None:
    logs = np.random.default_rng(0).normal(size=1_000_000)
    logs = logs[logs > at]
    mean, variance = lognormal.beyond(at, deviation)
    assert mean == pytest.approx(np.exp(deviation * (logs - at)).mean(), rel=5e-3)
    assert variance == pytest.approx(logs.var(), rel=5e-2)


def test_far_out_it_stays_finite_and_beyond_the_value() -> None:
    mean, variance = lognormal.beyond(1e9, 0.2)
    assert 1 < mean < 1.2
    assert 0 < variance < 0.1


@pytest.mark.parametrize(("at", "deviation"), [(-5000.0, 0.2), (0.0, 400.0), (-2.0, 400.0)])
def test_costs_that_have_nothing_in_common_stay_finite(at: float, deviation: float) -> None:
    mean, variance = lognormal.beyond(at, deviation)
    assert 1 < mean < 1e23
    assert 0 < variance <= 1


def test_an_error_is_that_of_the_logarithm_above_and_bounded() -> None:
    assert lognormal.error(0.1, 1e6) == pytest.approx(math.exp(0.196) - 1, rel=1e-3)
    assert lognormal.error(9.0, 2) == math.expm1(lognormal.WIDEST)
