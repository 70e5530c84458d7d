"""The interval of what was saved, against simulated jobs whose truth is known."""

from __future__ import annotations

import pytest

from benchmarks import family
from benchmarks.savings import Answer, answers, coverage, simulate, width

SEEDS = family.REPORTED[:40]  # the constants were chosen on others


def after_30_and_200_runs(kind: str) -> tuple[list[Answer], list[Answer]]:
    """The answers of the same jobs, which `zeus` decides, after 30 and after 200 runs."""
    found = answers(kind, "zeus", SEEDS, [30, 200])
    after_30 = [each for each in found if each.recurrences == 30]
    return after_30, [each for each in found if each.recurrences == 200]


@pytest.mark.parametrize("kind", ["ordinary", "noisy"])
def test_the_interval_holds_the_truth_90_to_98_times_in_100(kind: str) -> None:
    after_30, after_200 = after_30_and_200_runs(kind)
    assert 0.9 <= coverage(after_30) <= 0.98
    assert coverage(after_200) >= 0.9
    assert max(width(after_30), width(after_200)) <= 1.5


@pytest.mark.parametrize("kind", ["dearer", "cheaper"])
def test_it_does_so_at_least_90_times_while_the_job_changes(kind: str) -> None:
    after_30, after_200 = after_30_and_200_runs(kind)
    assert min(coverage(after_30), coverage(after_200)) >= 0.9
    assert width(after_200) <= 2.5


def test_it_does_so_with_the_default_policy() -> None:
    found = answers("ordinary", "information_directed", SEEDS, [30])
    assert 0.9 <= coverage(found) <= 0.98
    assert width(found) <= 1.5
    assert coverage(answers("dearer", "information_directed", SEEDS, [30])) >= 0.9


def test_a_job_that_always_takes_its_default_has_saved_nothing_within_its_interval() -> None:
    held = []
    for seed in SEEDS:
        workload = family.case("ordinary", seed).workload
        for ledger, answer in simulate(workload, "default", seed, [3, 30]):
            spent = sum(era.energy_j for era in ledger.eras)
            assert answer.found.energy_j.estimate == pytest.approx(0, abs=1e-9 * spent)
            held.append(abs(answer.truth[0]) <= answer.found.energy_j.error)
    assert sum(held) / len(held) >= 0.9
