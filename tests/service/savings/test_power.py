"""A run's mean power limit, and what a batch takes at another one."""

from __future__ import annotations

import pytest
from zeus_service.messages import PowerPoint, Report, Trial
from zeus_service.savings import power as power_limits

POINTS = [[100.0, 20.0, 0.30], [200.0, 25.0, 0.24], [300.0, 30.0, 0.21]]


@pytest.mark.parametrize(
    ("limits_w", "energy", "time_s"),
    [
        ((200.0, 300.0), 30 / 25, 0.21 / 0.24),
        ((300.0, 300.0), 1.0, 1.0),
        ((100.0, 200.0), 25 / 20, 0.24 / 0.30),  # the highest measured limit is not the default
        ((300.0, 200.0), 25 / 30, 0.24 / 0.21),  # above the default
        ((250.0, 300.0), 30 / 27.5, 0.21 / 0.225),  # between two measured limits
        ((200.0, 400.0), 30 / 25, 0.21 / 0.24),  # beyond them
        ((50.0, 90.0), 1.0, 1.0),
    ],
)
def test_a_batch_at_the_default_limit_is_compared_with_one_at_the_limit_in_force(
    limits_w: tuple[float, float], energy: float, time_s: float
) -> None:
    assert power_limits.ratio(POINTS, limits_w) == pytest.approx((energy, time_s))


def test_without_a_profile_or_limits_nothing_is_known() -> None:
    assert power_limits.ratio([], (200.0, 300.0)) is None
    assert power_limits.ratio(POINTS, None) is None


@pytest.mark.parametrize("count", [1, 2, 32, 33, 500])
def test_a_long_profile_is_thinned_to_its_ends_and_some_between(count: int) -> None:
    points = [PowerPoint(limit_w=w, energy_j=w + 0.5, time_s=1.0) for w in range(count, 0, -1)]
    thinned = power_limits.thinned(points)
    assert len(thinned) <= power_limits.MAX_POINTS
    assert len(thinned) > min(count, power_limits.MAX_POINTS) // 2
    assert (thinned[0][0], thinned[-1][0]) == (1, count)
    assert thinned == sorted(thinned)
    assert all(energy_j == watts + 0.5 for watts, energy_j, _ in thinned)


def of_run(*reports: tuple[float, float | None]) -> float | None:
    """The mean limit after reports at times, with the limits in force."""
    given = {"job_id": "job", "trial_number": 1, "generation": "g", "batch_size": 32}
    given |= {"why": "explore", "outcome": None, "reason": "", "started_at": 0, "ended_at": None}
    trial = Trial.model_validate(
        {**given, "lease_expires_at": 0, "epoch": 0, "energy_j": 0, "metric": None, "cost": 0}
        | {"reports": 0, "time_s": 0.0, "power_limit_w": None, "default_power_limit_w": None}
    )
    for sequence, (time_s, limit_w) in enumerate(reports, 1):
        measured = {"sequence": sequence, "epoch": 1, "time_s": time_s, "energy_j": 1.0}
        limits = {"power_limit_w": limit_w, "default_power_limit_w": 300.0}
        report = Report.model_validate({**measured, **limits, "metric": 0.5})
        mean_w, default_w = power_limits.of_run(trial, report)
        assert default_w == 300.0
        changes = {"reports": sequence, "time_s": time_s, "power_limit_w": mean_w}
        trial = trial.model_copy(update=changes)
    return trial.power_limit_w


@pytest.mark.parametrize(
    ("reports", "mean_w"),
    [
        ([(10.0, 200.0)], 200.0),
        ([(10.0, 300.0), (40.0, 200.0)], 225.0),
        ([(10.0, 300.0), (20.0, 200.0), (40.0, 100.0)], 175.0),
        ([(0.0, 300.0), (0.0, 200.0)], 300.0),
        ([(10.0, None), (20.0, 200.0)], None),
        ([(10.0, 300.0), (20.0, None)], None),
    ],
)
def test_a_runs_limit_is_its_mean_over_time(
    reports: list[tuple[float, float | None]], mean_w: float | None
) -> None:
    assert of_run(*reports) == (None if mean_w is None else pytest.approx(mean_w))
