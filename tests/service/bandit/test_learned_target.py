"""What target follows from the best values of baselines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.jobs import spec
from zeus_service.bandit.learned_target import learn
from zeus_service.bandit.spec import MAX_METRIC, JobSpec

RISING, FALLING = (spec(target_metric=None, higher_is_better=rises) for rises in (True, False))
directions = pytest.mark.parametrize("job", [RISING, FALLING], ids=["rising", "falling"])
metrics = st.floats(-MAX_METRIC, MAX_METRIC)


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_the_next_run_reaches_the_target_90_times_in_100(count: int) -> None:
    rng = np.random.default_rng(count)
    runs = rng.normal(0.9, 0.01, (5_000, count + 1))
    reached = 0
    for row in runs:
        reached += row[count] >= learn(RISING, row[:count].tolist())
    assert reached / len(runs) == pytest.approx(0.9, abs=0.008)


def test_the_target_is_a_published_prediction_bound() -> None:
    """The mean is 0.95, the standard deviation 0.01; 1.8856 * sqrt(4 / 3) * 0.01 = 0.02177."""
    assert learn(RISING, [0.94, 0.95, 0.96]) == pytest.approx(0.95 - 0.02177, abs=1e-5)
    assert learn(FALLING, [0.94, 0.95, 0.96]) == pytest.approx(0.95 + 0.02177, abs=1e-5)


@directions
@given(value=metrics, count=st.integers(2, 20))
def test_equal_values_are_the_target(job: JobSpec, value: float, count: int) -> None:
    assert learn(job, [value] * count) == value


@pytest.mark.parametrize("worst", [min, max], ids=["rising", "falling"])
@given(values=st.lists(st.floats(-1, 1), min_size=2, max_size=4))
def test_up_to_four_baselines_all_reach_it(
    worst: Callable[[list[float]], float], values: list[float]
) -> None:
    target = learn(RISING if worst is min else FALLING, values)
    slack = 1e-12
    if worst is min:
        assert min(values) >= target - slack
    else:
        assert max(values) <= target + slack


@directions
@given(values=st.lists(metrics, min_size=2, max_size=20))
def test_at_least_one_baseline_reaches_it_and_a_job_accepts_it(
    job: JobSpec, values: list[float]
) -> None:
    target = learn(job, values)
    known = spec(target_metric=target, higher_is_better=job is RISING)
    assert any(known.reached(value) for value in values)
