"""The interval of what was saved, against simulated jobs whose truth is known."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks import family
from benchmarks.savings import Answer, answers, coverage, simulate, width

SEEDS = family.REPORTED[:40]  # the constants were chosen on others


@cache  # two tests ask about the same jobs
def after_30_and_200_runs(kind: str) -> list[Answer]:
    """Answers for jobs of one kind, under the `zeus` policy."""
    return answers(kind, "zeus", SEEDS, [30, 200])


def answers_after(recurrences: int, kind: str, policy: str = "zeus") -> list[Answer]:
    """Answers for jobs of one kind after some recurrences."""
    if policy != "zeus":
        return answers(kind, policy, SEEDS, [recurrences])
    return [each for each in after_30_and_200_runs(kind) if each.recurrences == recurrences]


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("ordinary", "information_directed"), ("ordinary", "zeus"), ("noisy", "zeus")],
)
def test_the_interval_holds_the_truth_90_to_98_times_in_100(kind: str, policy: str) -> None:
    found = answers_after(30, kind, policy)
    assert 0.9 <= coverage(found) <= 0.98
    assert width(found) <= 1.5


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("dearer", "information_directed"), ("dearer", "zeus"), ("cheaper", "zeus")],
)
def test_it_does_so_at_least_90_times_while_the_job_changes(kind: str, policy: str) -> None:
    assert coverage(answers_after(30, kind, policy)) >= 0.9


@pytest.mark.parametrize(
    ("kind", "widest"), [("ordinary", 1.5), ("noisy", 1.5), ("dearer", 2.5), ("cheaper", 2.5)]
)
def test_after_hundreds_of_runs_it_still_does_and_is_not_wide(kind: str, widest: float) -> None:
    found = answers_after(200, kind)
    assert coverage(found) >= 0.9
    assert width(found) <= widest


def test_a_job_that_always_takes_its_default_has_saved_nothing_within_its_interval() -> None:
    held = []
    for seed in SEEDS:
        workload = family.case("ordinary", seed).workload
        for ledger, answer in simulate(workload, "default", seed, [3, 30]):
            spent = sum(era.energy_j for era in ledger.eras)
            assert answer.found.energy_j.estimate == pytest.approx(0, abs=1e-9 * spent)
            held.append(abs(answer.truth[0]) <= answer.found.energy_j.error)
    assert sum(held) / len(held) >= 0.9
