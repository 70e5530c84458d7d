"""Synthetic workloads."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

seeds = st.integers(0, 2**32 - 1)


def falls_then_rises(costs: list[float]) -> bool:
    lowest = int(np.argmin(costs))
    down, up = pairwise(costs[: lowest + 1]), pairwise(costs[lowest:])
    return all(a > b for a, b in down) and all(a < b for a, b in up)


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


def test_cost_over_batch_size_is_a_valley() -> None:
    workloads = [synthetic_workload(seed) for seed in range(200)]
    # Noise and whole epochs can make a dent in it, on some seeds.
    assert sum(falls_then_rises(costs(workload)) for workload in workloads) > 170


def test_some_ends_are_infeasible_and_some_runs_are_noisy() -> None:
    workloads = [synthetic_workload(seed) for seed in range(100)]
    ends = [
        math.isinf(max(workload.settings[size].target_epochs))
        for workload in workloads
        for size in (min(workload.settings), max(workload.settings))
    ]
    noisy = [
        len(set(workload.settings[workload.default_batch_size].target_epochs)) > 1
        for workload in workloads
    ]
    for share in (np.mean(ends), np.mean(noisy)):
        assert 0.1 < share < 0.95


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_a_drift_moves_the_optimum_by_several_batch_sizes(seed: int) -> None:
    drift = drifting_workload(seed)
    first, last = (math.log2(phase.oracle(0.5)) for phase in (drift.phases[0], drift.phases[-1]))
    assert 1 <= abs(first - last) <= 5
