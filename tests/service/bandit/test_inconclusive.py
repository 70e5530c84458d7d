"""Batch sizes whose trials end without a verdict, with every policy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from service.jobs import spec
from zeus_service.bandit import fold as history
from zeus_service.bandit.inconclusive import passed_over, without_counts
from zeus_service.bandit.outcomes import NO_VERDICT, Outcome
from zeus_service.bandit.policy import Choice
from zeus_service.bandit.registry import POLICIES

policies = pytest.mark.parametrize("policy", ["zeus", "information_directed"])
outcomes = pytest.mark.parametrize("outcome", sorted(NO_VERDICT - {"withdrawn"}))


def distance(batch_size: int) -> float:
    """Octaves from the cheapest batch size."""
    return abs(math.log2(batch_size / 36))


class Job:
    """A job whose trials follow one another; 32 is its cheapest batch size, and its default."""

    def __init__(self, policy: str, seed: int = 1) -> None:
        self.spec = spec(policy=policy, seed=seed)
        self.state = history.fold(self.spec, [])
        self.trials = 0
        self._noise = np.random.default_rng(seed)

    def choose(self) -> Choice:
        rng = np.random.default_rng([1, self.trials])
        return POLICIES[self.spec.policy or ""].next_batch_size(self.spec, self.state, rng)

    def add(self, kind: str, choice: Choice, *end: object) -> None:
        event = history.Event(kind, self.trials, choice, *end)  # type: ignore[arg-type]
        self.state = history.apply(self.spec, self.state, event)

    def run(self, outcome_of: Callable[[int], Outcome]) -> int:
        """One trial, which ends as the function says; return its batch size."""
        choice = self.choose()
        self.trials += 1
        self.add("started", choice)
        cost = 1000 * (1 + 0.4 * distance(choice.batch_size))
        cost *= float(self._noise.normal(1, 0.03))
        self.add("ended", choice, outcome_of(choice.batch_size), cost)
        return choice.batch_size

    @property
    def best(self) -> int | None:
        return POLICIES[self.spec.policy or ""].best_batch_size(self.spec, self.state)


def always(outcome: Outcome) -> Callable[[int], Outcome]:
    return lambda _: outcome


@policies
@outcomes
@pytest.mark.parametrize("bad", [{32}, {32, 64, 128}, {16, 32, 64, 128}, {8, 16, 32}])
def test_a_default_that_never_gets_to_a_verdict_does_not_hold_up_the_job(
    policy: str, outcome: Outcome, bad: set[int]
) -> None:
    job = Job(policy)
    sizes = [job.run(lambda size: outcome if size in bad else "converged") for _ in range(100)]
    assert sizes[:4].count(32) == 3
    assert sum(size in bad for size in sizes) <= 8 * len(bad)
    assert sizes[50:].count(job.best or 0) > 35
    assert job.best == min(set(job.spec.batch_sizes) - bad, key=distance)


@policies
@pytest.mark.parametrize("earlier", [0, 60], ids=["from the start", "later"])
def test_errors_with_every_batch_size_exhaust_no_job_and_leave_no_trace(
    policy: str, earlier: int
) -> None:
    job = Job(policy)
    for _ in range(earlier):
        job.run(always("converged"))
    learned, usual = without_counts(job.state), job.choose().batch_size
    sizes = [job.run(always("errored")) for _ in range(60)]
    assert without_counts(job.state) == learned
    assert sizes[:3] == [usual] * 3
    assert sizes[40:].count(usual) > 15
    for _ in range(60):
        job.run(always("converged"))
    assert job.best == 32
    assert not passed_over(job.state)


@policies
def test_trials_that_resumed_runs_withdraw_pass_over_no_batch_size(policy: str) -> None:
    job = Job(policy)
    for _ in range(10):  # a night with two resumes while the trial of the killed run has its lease
        first, trial = job.choose(), job.trials + 1
        job.trials = trial
        job.add("started", first)
        job.run(always("withdrawn"))
        job.run(always("withdrawn"))
        assert not passed_over(job.state)
        job.trials, last = trial, job.trials
        job.add("ended", first, "converged", 1000 * (1 + 0.4 * distance(first.batch_size)))
        job.trials = last
    assert job.best == 32


@policies
def test_trials_that_end_now_and_then_without_a_verdict_cost_no_batch_size(policy: str) -> None:
    for seed in range(10):
        job, rng = Job(policy, seed), np.random.default_rng(seed)
        for _ in range(100):
            job.run(lambda _: "interrupted" if rng.random() < 0.2 else "converged")  # noqa: B023
        assert job.best == 32


@policies
@pytest.mark.parametrize("outcome", ["lost", "interrupted", "errored"])
def test_a_trial_that_comes_back_ends_the_row_and_its_verdict_counts(
    policy: str, outcome: Outcome
) -> None:
    job = Job(policy)
    for _ in range(3):
        job.run(always(outcome))
    assert passed_over(job.state) == {32: outcome}
    job.run(always("converged"))  # another one
    back = Choice(32, "explore")
    job.add("revived", back)
    assert not passed_over(job.state)
    job.add("ended", back, "converged", 1000.0)
    assert job.best == 32


@policies
def test_while_one_is_passed_over_overlapping_trials_do_not_get_it_either(policy: str) -> None:
    job = Job(policy)
    for _ in range(3):
        job.run(always("errored"))
    for _ in range(10):
        choice = job.choose()
        assert choice.batch_size != 32
        job.add("started", choice)


@policies
def test_the_retry_after_others_have_trained_counts_as_a_verdict(policy: str) -> None:
    job = Job(policy)
    sizes = [job.run(lambda size: "errored" if size == 32 else "converged") for _ in range(60)]
    assert 4 <= sizes.count(32) <= 8
    arms = POLICIES[policy].describe(job.spec, job.state)
    assert {arm.batch_size: arm.pulls for arm in arms}[32] >= 1
