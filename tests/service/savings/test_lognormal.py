"""Means and noise of log-normal costs of which some runs were stopped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies
from zeus_service.savings.lognormal import Truncation, relative_error, t_quantile

COUNTS = strategies.integers(0, 10**6)


@pytest.mark.parametrize(("degrees", "wanted"), [(2, 4.303), (5, 2.571), (20, 2.086), (1e6, 1.960)])
def test_students_quantile_agrees_with_the_tables(degrees: float, wanted: float) -> None:
    tolerance = 0.035 if degrees < 5 else 2e-3
    assert t_quantile(degrees) == pytest.approx(wanted, rel=tolerance)


def test_an_error_follows_from_the_logarithm_and_is_bounded() -> None:
    assert relative_error(0.1, 1e6) == pytest.approx(math.exp(0.196) - 1, rel=1e-3)
    assert relative_error(9.0, 2) == pytest.approx(math.expm1(1.5))


@pytest.mark.parametrize("at", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("deviation", [0.05, 0.5])
def test_the_share_of_stopped_runs_tells_what_to_correct(at: float, deviation: float) -> None:
    logs = np.random.default_rng(0).normal(2.0, deviation, size=400_000)
    converged = logs[logs <= 2.0 + at * deviation]
    stopped = logs[logs > 2.0 + at * deviation]
    found = Truncation.of_counts(len(converged), len(stopped))
    assert converged.mean() + found.below * deviation == pytest.approx(2.0, abs=0.01 * deviation)
    assert stopped.mean() - found.above * deviation == pytest.approx(2.0, abs=0.02 * deviation)
    assert converged.std() / math.sqrt(found.shrink) == pytest.approx(deviation, rel=0.01)
    mean = np.exp(converged).mean() * found.factor(deviation)
    assert mean == pytest.approx(math.exp(2.0 + deviation**2 / 2), rel=0.01)


@given(COUNTS.filter(bool), COUNTS, strategies.floats(1e-3, 1e3))
def test_corrections_are_finite_and_never_lower_a_mean(
    runs: int, stops: int, deviation: float
) -> None:
    found = Truncation.of_counts(runs, stops)
    assert 0 < found.shrink <= 1
    assert 0 <= found.below < 100
    assert 1 <= found.factor(deviation) <= 20.001
    if stops:
        assert 0 < found.above < 100
    else:
        assert (found.below, found.shrink, found.factor(deviation)) == (0, 1, 1)
