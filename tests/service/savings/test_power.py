"""A run's mean power limit, and what a batch takes at another one."""

from __future__ import annotations

import pytest
from zeus_service.savings import power

POINTS = [[100.0, 20.0, 0.30], [200.0, 25.0, 0.24], [300.0, 30.0, 0.21]]


@pytest.mark.parametrize(
    ("limit_w", "default_limit_w", "energy", "time"),
    [
        (200.0, 300.0, 30 / 25, 0.21 / 0.24),
        (300.0, 300.0, 1.0, 1.0),
        (100.0, 200.0, 25 / 20, 0.24 / 0.30),  # the highest measured limit is not the default
        (300.0, 200.0, 25 / 30, 0.24 / 0.21),  # above the default
        (250.0, 300.0, 30 / 27.5, 0.21 / 0.225),  # between two measured limits
        (200.0, 400.0, 30 / 25, 0.21 / 0.24),  # beyond them
        (50.0, 90.0, 1.0, 1.0),
    ],
)
def test_a_batch_at_the_default_limit_is_compared_with_one_at_another_limit(
    limit_w: float, default_limit_w: float, energy: float, time: float
) -> None:
    assert power.ratio(POINTS, limit_w, default_limit_w) == pytest.approx((energy, time))


@pytest.mark.parametrize(
    ("points", "limit_w", "default_limit_w"),
    [
        ([], 200.0, 300.0),
        (POINTS, None, 300.0),
        (POINTS, 200.0, None),
        ([[100.0, 5e-324, 0.3], [300.0, 1e15, 0.2]], 100.0, 300.0),  # not a GPU's
    ],
)
def test_nothing_changes_where_a_limit_or_the_profile_is_unknown(
    points: list[power.Point], limit_w: float | None, default_limit_w: float | None
) -> None:
    assert power.ratio(points, limit_w, default_limit_w) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("reports", "mean_w"),
    [
        ([(10.0, 200.0)], 200.0),
        ([(10.0, 300.0), (40.0, 200.0)], 225.0),
        ([(10.0, 300.0), (20.0, 200.0), (40.0, 100.0)], 175.0),
        ([(10.0, None), (20.0, 200.0)], None),
        ([(10.0, 300.0), (20.0, None)], None),
    ],
)
def test_a_runs_limit_is_its_mean_over_time(
    reports: list[tuple[float, float | None]], mean_w: float | None
) -> None:
    found, before_s = None, 0.0
    for time_s, limit_w in reports:
        found, before_s = power.mean_limit(found, before_s, limit_w, time_s), time_s
    assert found == (None if mean_w is None else pytest.approx(mean_w))
