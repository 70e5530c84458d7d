"""The wide family of synthetic workloads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus_service.simulation.workload import Workload

from benchmarks.family import CHOSEN_ON, KINDS, REPORTED, Case, busy_submissions, case

seeds = st.integers(0, 2000)
kinds = pytest.mark.parametrize("kind", KINDS)


def costs(workload: Workload) -> list[float]:
    return [workload.expected_cost(size, 0.5) for size in workload.settings]


def many(kind: str, count: int = 40) -> list[Case]:
    return [case(kind, seed) for seed in range(count)]


def test_the_parts_share_no_seed() -> None:
    assert not set(CHOSEN_ON) & set(REPORTED)


@kinds
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_a_seed_gives_one_workload_that_can_be_registered(kind: str, seed: int) -> None:
    made = case(kind, seed)
    assert made == case(kind, seed)
    spec = made.workload.spec(seed=seed)
    assert spec.batch_sizes == list(made.workload.settings)
    assert min(costs(made.workload)) < math.inf
    count = made.recurrences if isinstance(made.recurrences, int) else len(made.recurrences)
    assert 20 <= count <= 1000


def test_the_whole_range_of_slopes_noise_and_batch_sizes_is_drawn() -> None:
    cases = [made for kind in KINDS for made in many(kind, 10)]
    counts = {len(made.workload.settings) for made in cases}
    assert min(counts) == 2
    assert max(counts) > 30
    sizes = [size for made in cases for size in made.workload.settings]
    assert any(size % 8 for size in sizes)
    assert any(math.log2(size) % 1 and size % 8 == 0 for size in sizes)
    slopes, variations = [], []
    for made in many("ordinary", 100):
        settings_ = list(made.workload.settings.values())
        epochs = np.array(settings_[0].target_epochs)
        variations.append(epochs.std() / epochs.mean())
        octaves = np.log2(list(made.workload.settings))
        slopes.append(np.abs(np.diff(np.log(costs(made.workload))) / np.diff(octaves)))
    assert min(variations) < 0.02 < 0.4 < max(variations) < 0.55
    steepest = [each.max() for each in slopes]
    assert min(steepest) < 0.05 < 0.4 < max(steepest)


def test_the_best_can_be_an_edge_the_last_that_converges_or_far_from_the_default() -> None:
    for made in many("edge"):
        order = costs(made.workload)
        assert min(order[0], order[-1]) < 1.15 * min(order)
    for made in many("cliff"):
        order, best = costs(made.workload), int(np.argmin(costs(made.workload)))
        neighbours = order[max(0, best - 1) : best + 2]
        assert math.inf in order
        assert math.inf in neighbours or min(order) > 0.85 * sorted(order)[1]
    far = [
        abs(math.log2(made.workload.oracle(0.5) / made.workload.default_batch_size))
        for made in many("far")
    ]
    assert np.median(far) > 2


def test_defaults_fail_on_both_sides() -> None:
    above = below = 0
    for made in many("default_fails"):
        workload = made.workload
        assert workload.expected_cost(workload.default_batch_size, 0.5) == math.inf
        above += workload.oracle(0.5) > workload.default_batch_size
        below += workload.oracle(0.5) < workload.default_batch_size
    assert min(above, below) > 10


def test_memory_ends_above_a_batch_size_and_one_run_in_five_fails_below() -> None:
    for kind, below in (("memory", 0.0), ("shared_memory", 0.2)):
        for made in many(kind):
            chances = [each.out_of_memory for each in made.workload.settings.values()]
            assert set(chances) == {below, 1.0}
            assert chances == sorted(chances)


def test_runs_are_heavy_tailed_or_fail_at_random() -> None:
    for made in many("heavy_tail"):
        epochs = np.sort(next(iter(made.workload.settings.values())).target_epochs)
        assert epochs[-10:].mean() == pytest.approx(5 * epochs[:-10].mean(), rel=0.35)
    for made in many("failing"):
        epochs = np.array(next(iter(made.workload.settings.values())).target_epochs)
        assert 0.02 <= np.isinf(epochs).mean() <= 0.2


def test_two_valleys_have_a_ridge_between_them() -> None:
    ridges = 0
    for made in many("two_valleys"):
        order = np.array(costs(made.workload))
        lower = (order[1:-1] < order[:-2]) & (order[1:-1] < order[2:])
        ridges += lower.sum() + (order[0] < order[1]) + (order[-1] < order[-2]) > 1
    assert ridges > 30


def test_jobs_become_dearer_cheaper_or_both_and_then_stay_as_they_are() -> None:
    for kind, sign in (("dearer", 1), ("cheaper", -1), ("to_and_fro", 1)):
        steps = set()
        for made in many(kind):
            assert isinstance(made.recurrences, int)
            first, last = (made.workload.at(i) for i in (0, made.recurrences - 1))
            assert made.workload.at(made.recurrences - 100) is last
            changed = {min(costs(phase)) for phase in made.workload.phases}
            steps.add(len(made.workload.phases))
            if kind != "to_and_fro":
                assert sign * (min(costs(last)) - min(costs(first))) > 0
            assert len(changed) > 1
        assert len(steps) > 1


def test_busy_submissions_overlap_and_take_as_long_as_their_ratio_says() -> None:
    overlaps = 0
    for number in range(10):
        submissions = busy_submissions(1, number, 50)
        assert submissions == busy_submissions(1, number, 50)
        starts = [each.start_s for each in submissions]
        assert starts == sorted(starts)
        ends = [each.end_s for each in submissions]
        overlaps += sum(end > start for end, start in zip(ends, starts[1:], strict=False))
        for each in submissions:
            assert each.end_s - each.start_s == pytest.approx(each.runtime_ratio * 3600)
    assert 100 < overlaps < 490
