"""The hostile kinds of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from zeus_service.simulation.experiment import Experiment
from zeus_service.simulation.simulated_run import TrialRunner
from zeus_service.simulation.workload import Workload

from benchmarks.hostile import cases

CASES = cases(["zeus"], range(10))


def of_kind(kind: str) -> Iterator[Experiment]:
    return (case.experiment for case in CASES if case.row == kind)


def relative_costs(workload: Workload) -> list[float]:
    costs = [workload.expected_cost(size, 0.5) for size in workload.settings]
    return [cost / min(costs) for cost in costs]


def first_run(experiment: Experiment, size: int) -> float:
    targets = experiment.workload.settings[size].target_epochs
    return TrialRunner(experiment.spec).draw(size, targets)[0]


@pytest.mark.parametrize("kind", dict.fromkeys(case.row for case in CASES))
def test_some_batch_size_converges(kind: str) -> None:
    assert all(min(relative_costs(each.workload)) == 1 for each in of_kind(kind))


def test_gentle_jobs_have_runs_of_four_or_five_epochs() -> None:
    for each in of_kind("gentle_flat"):
        assert sum(cost < 1.02 for cost in relative_costs(each.workload)) == 3
    for each in of_kind("gentle_edge"):
        assert sorted(relative_costs(each.workload))[1] > 1.06
        draws = {draw for s in each.workload.settings.values() for draw in s.target_epochs}
        assert draws == {4.0, 5.0}


def test_the_far_edge_is_four_octaves_from_the_default() -> None:
    for each in of_kind("far_edge"):
        best = each.workload.oracle(0.5)
        assert abs(math.log2(best / each.workload.default_batch_size)) == 4
        assert best in (min(each.workload.settings), max(each.workload.settings))


def test_the_first_run_is_by_luck_cheap_or_costly() -> None:
    for each in of_kind("costly_first_run"):
        size = each.workload.default_batch_size
        assert first_run(each, size) > 4 * sorted(each.workload.settings[size].target_epochs)[50]
    for each in of_kind("lucky_run"):
        settings = each.workload.settings
        firsts = [first_run(each, s) / sorted(settings[s].target_epochs)[50] for s in settings]
        assert sum(first < 0.55 for first in firsts) == 1


def test_the_batch_size_that_becomes_cheap_was_dear() -> None:
    for each in of_kind("becomes_cheap"):
        early, late = each.workload.at(0), each.workload.at(99)
        assert early.expected_cost(late.oracle(0.5), 0.5) > 1.5 * min(
            early.expected_cost(size, 0.5) for size in early.settings
        )
