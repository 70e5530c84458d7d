"""Means and noise of log-normal costs of which some runs were stopped."""

from __future__ import annotations

import math

import pytest
from zeus_service.savings.expected import normal_score, relative_error, t_quantile


@pytest.mark.parametrize(("degrees", "wanted"), [(2, 4.303), (5, 2.571), (20, 2.086), (1e6, 1.960)])
def test_students_quantile_agrees_with_the_tables(degrees: float, wanted: float) -> None:
    tolerance = 0.035 if degrees < 5 else 2e-3
    assert t_quantile(degrees) == pytest.approx(wanted, rel=tolerance)


@pytest.mark.parametrize("degrees", [2, 5, 20, 1e6])
def test_a_quantile_of_students_distribution_has_the_score_of_the_normal_one(
    degrees: float,
) -> None:
    t = {2: 4.303, 5: 2.571, 20: 2.086, 1e6: 1.960}[degrees]
    assert normal_score(t, degrees) == pytest.approx(1.960, rel=0.02)
    assert normal_score(-t, degrees) == -normal_score(t, degrees)


def test_an_error_follows_from_the_logarithm_and_is_bounded() -> None:
    assert relative_error(0.1, 1e6) == pytest.approx(math.exp(0.196) - 1, rel=1e-3)
    assert relative_error(9.0, 2) == pytest.approx(math.expm1(1.5))
