"""Batch sizes whose trials end without a result, with every policy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from service.jobs import HARDWARE, LEARNING, PastTrial, spec
from zeus_service.bandit import fold
from zeus_service.bandit.fold import IN_A_ROW, passed_over
from zeus_service.bandit.outcomes import RESUMABLE, Outcome
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft
from zeus_service.bandit.registry import POLICIES

policies = pytest.mark.parametrize("policy", ["zeus", "information_directed"])


def distance(batch_size: int) -> float:
    """Octaves from the cheapest batch size."""
    return abs(math.log2(batch_size / 36))


class Job:
    """A job whose trials follow one another; 32 is its cheapest batch size, and its default."""

    def __init__(self, policy: str, seed: int = 1) -> None:
        self.spec = spec(policy=policy, seed=seed)
        self.state, self.counts = fold.replay(self.spec, [])
        self.trials: list[PastTrial] = []
        self._noise = np.random.default_rng(seed)

    def choose(self) -> Choice:
        return self.choose_among(self.spec.batch_sizes)

    def choose_among(self, usable: list[int]) -> Choice:
        rng = np.random.default_rng([1, len(self.trials)])
        return fold.choose(self.spec, self.state, self.counts, HARDWARE, rng, usable)

    def start(self) -> PastTrial:
        """Start a trial."""
        choice = self.choose()
        trial = PastTrial(choice.batch_size, choice.why)
        self.trials.append(trial)
        self.state = fold.begin(self.spec, self.state, trial)
        return trial

    def end(self, trial: PastTrial, outcome: Outcome) -> None:
        """End a trial; its cost grows with the distance from the cheapest batch size."""
        cost = 1000 * (1 + 0.4 * distance(trial.batch_size))
        trial.outcome, trial.cost = outcome, cost * float(self._noise.normal(1, 0.03))
        self.state, self.counts = fold.end(self.spec, self.state, self.counts, trial)

    def run(self, outcome_of: Callable[[int], Outcome]) -> int:
        """One trial, which ends as the function says; return its batch size."""
        trial = self.start()
        self.end(trial, outcome_of(trial.batch_size))
        return trial.batch_size

    @property
    def best(self) -> int | None:
        return POLICIES[self.spec.policy or ""].best_batch_size(self.spec, self.state, HARDWARE)


def always(outcome: Outcome) -> Callable[[int], Outcome]:
    return lambda _: outcome


@policies
@pytest.mark.parametrize(
    ("outcome", "bad"),
    [
        *((outcome, {32}) for outcome in sorted(RESUMABLE)),
        *(("errored", bad) for bad in ({32, 64, 128}, {16, 32, 64, 128}, {8, 16, 32})),
    ],
)
def test_a_default_that_never_gets_to_a_result_does_not_hold_up_the_job(
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
    learned, usual = job.state, job.choose().batch_size
    sizes = [job.run(always("errored")) for _ in range(60)]
    assert job.state == learned
    assert sizes[:3] == [usual] * 3
    assert sizes[40:].count(usual) > 15
    for _ in range(60):
        job.run(always("converged"))
    assert job.best == 32
    assert not passed_over(job.counts)


@policies
def test_trials_that_resumed_runs_withdraw_pass_over_no_batch_size(policy: str) -> None:
    job = Job(policy)
    for _ in range(10):  # a night with two resumes while the trial of the killed run has its lease
        first = job.start()
        job.run(always("withdrawn"))
        job.run(always("withdrawn"))
        assert not passed_over(job.counts)
        job.end(first, "converged")
    assert job.best == 32


@policies
def test_trials_that_end_now_and_then_without_a_result_cost_no_batch_size(policy: str) -> None:
    for seed in range(5):
        job, rng = Job(policy, seed), np.random.default_rng(seed)
        for _ in range(100):
            job.run(lambda _: "interrupted" if rng.random() < 0.2 else "converged")  # noqa: B023
        assert job.best == 32


@policies
def test_the_retry_after_others_have_trained_counts_as_a_result(policy: str) -> None:
    job = Job(policy)
    sizes = [job.run(lambda size: "errored" if size == 32 else "converged") for _ in range(60)]
    assert 4 <= sizes.count(32) <= 8
    arms = POLICIES[policy].describe(job.spec, job.state, HARDWARE)
    assert {arm.batch_size: arm.pulls for arm in arms}[32] >= 1


@policies
def test_a_job_whose_other_batch_sizes_have_all_failed_ends_with_the_one_passed_over(
    policy: str,
) -> None:
    job = Job(policy)
    sizes: list[int] = []
    outcome_of: Callable[[int], Outcome] = lambda size: (  # noqa: E731
        "errored" if size == 32 else "not_converged"
    )
    with pytest.raises(NoBatchSizeLeft):
        sizes.extend(job.run(outcome_of) for _ in range(40))
    assert sizes.count(32) <= 5


@pytest.mark.parametrize("policy", LEARNING)
def test_devices_that_can_use_nothing_else_get_a_batch_size_that_is_passed_over(
    policy: str,
) -> None:
    job = Job(policy)
    for _ in range(IN_A_ROW):
        assert job.run(lambda _: "errored") == 32
    assert job.choose_among([16, 32]).batch_size == 16
    assert job.choose_among([32]).batch_size == 32
