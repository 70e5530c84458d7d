"""Synthetic workloads."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

seeds = st.integers(0, 2**32 - 1)


def costs(workload: Workload) -> list[float]:
    expected = [workload.expected_cost(size, 0.5) for size in workload.settings]
    return [cost for cost in expected if math.isfinite(cost)]


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_seed_gives_one_workload_that_can_be_registered(seed: int) -> None:
    workload = synthetic_workload(seed)
    assert workload == synthetic_workload(seed)
    assert workload.spec(seed=seed).batch_sizes == list(workload.settings)


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_the_default_always_reaches_the_target_at_a_bearable_cost(seed: int) -> None:
    for workload in (synthetic_workload(seed), *drifting_workload(seed).phases[:1]):
        setting = workload.settings[workload.default_batch_size]
        assert max(setting.target_epochs) <= workload.max_epochs
        assert workload.expected_cost(workload.default_batch_size, 0.5) <= 4 * min(costs(workload))


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_drift_moves_the_optimum_by_several_batch_sizes(seed: int) -> None:
    drift = drifting_workload(seed)
    first, last = (math.log2(phase.oracle(0.5)) for phase in (drift.phases[0], drift.phases[-1]))
    assert 1 <= abs(first - last) <= 5
