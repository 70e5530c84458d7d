"""What the policy makes of its posterior."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from service.jobs import HARDWARE, next_choice, spec
from zeus_service.bandit import information_directed
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.outcomes import Result
from zeus_service.bandit.outlook import failure_probabilities
from zeus_service.bandit.policy import Choice, Observation, State
from zeus_service.bandit.spec import Hardware, JobSpec

policy = InformationDirectedPolicy()


def observe(
    job: JobSpec,
    state: State,
    batch_size: int,
    cost: float,
    result: Result = "converged",
    hardware: Hardware = HARDWARE,
) -> State:
    """A trial, started and ended; with each batch size, the cost of an epoch is always the same."""
    choice = Choice(batch_size, "exploit")
    epochs = round(cost / (10 * math.sqrt(32 / batch_size)))
    state = policy.begin(job, state, choice, hardware)
    return policy.observe(job, state, Observation(choice, result, cost, epochs, hardware))


def after(job: JobSpec, *trials: tuple[int, float] | tuple[int, float, Result]) -> State:
    """The state after trials: batch size, cost, and result unless it converged."""
    state = policy.initial_state(job)
    for trial in trials:
        state = observe(job, state, *trial)
    return state


def choices(job: JobSpec, state: State, seeds: int = 50) -> list[Choice]:
    return [next_choice(policy, job, state, np.random.default_rng(seed)) for seed in range(seeds)]


def costs(center: int, noise: float = 0.05, tries: int = 6) -> list[tuple[int, float]]:
    """Runs of a valley around a batch size."""
    rng = np.random.default_rng(0)
    return [
        (b, 1000 * (1 + 0.4 * abs(math.log2(b / center))) * math.exp(rng.normal(0, noise)))
        for b in spec().batch_sizes
        for _ in range(tries)
    ]


def test_while_all_fail_the_nearest_to_the_default_comes_next() -> None:
    job, state, order = spec(), policy.initial_state(spec()), []
    for _ in range(5):
        choice = next_choice(policy, job, state, np.random.default_rng(0))
        order.append(choice.batch_size)
        state = observe(job, state, choice.batch_size, 10.0, "not_converged")
    assert order == [32, 64, 16, 128, 8]


def test_failures_never_end_a_batch_size_that_has_converged() -> None:
    job = spec(batch_sizes=[32])
    state = after(job, (32, 1.0), *[(32, 1.0, "diverged")] * 20, (32, 0.0, "out_of_memory"))
    assert choices(job, state, 1)[0].batch_size == 32


def test_a_batch_size_that_often_fails_is_worth_less_than_its_cost() -> None:
    job = spec(batch_sizes=[32, 64])
    pairs = [(32, 1000.0), (64, 900.0), (64, 900.0, "diverged")]
    assert policy.best_batch_size(job, after(job, *pairs * 10), HARDWARE) == 32


def test_a_failure_makes_those_further_out_unlikely_to_converge_either() -> None:
    job = spec(batch_sizes=[8, 16, 32, 64, 128, 256, 512])
    state = after(job, (32, 1000.0), (16, 1200.0), (64, 900.0), (128, 1e4, "not_converged"))
    chosen = [choice.batch_size for choice in choices(job, state, 200)]
    assert set(chosen).isdisjoint({256, 512})
    assert chosen.count(128) <= 40  # the failure may have been bad luck
    state = after(job, (128, 1000.0), (256, 1200.0), (64, 900.0), (32, 1e4, "not_converged"))
    assert {c.batch_size for c in choices(job, state, 200)}.isdisjoint({8, 16, 32})


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("failed", [32, 128])
def test_beyond_those_that_converged_the_risk_does_not_fall(failed: int, times: int) -> None:
    job = spec(batch_sizes=[8, 16, 32, 64, 128, 256, 512])
    state = after(job, (64, 1000.0), *[(failed, 1e4, "not_converged")] * times)
    never, _ = failure_probabilities(job, state, HARDWARE)
    outwards = never[3:] if failed > 64 else never[3::-1]
    assert (np.diff(outwards) >= 0).all()
    assert outwards[1] > 0.5


def out_of_memory(*batch_sizes: int) -> list[tuple[int, float, Result]]:
    return [(batch_size, 0.0, "out_of_memory") for batch_size in batch_sizes]


@pytest.mark.parametrize(
    ("trials", "given_up"),
    [
        ([(32, 100.0), *out_of_memory(64)], set()),
        ([(32, 100.0), *out_of_memory(64, 64)], {64, 128}),
        ([(32, 100.0), *out_of_memory(128, 64)], {128}),  # the smaller one is the second opinion
        ([*out_of_memory(128, 64), (64, 100.0)], set()),
        ([(32, 100.0), *out_of_memory(64, 64), (64, 100.0, "diverged")], set()),  # it trains
        ([(64, 100.0), *out_of_memory(64, *[128] * 6)], {128}),  # 64 has converged
        ([*out_of_memory(64), (128, 100.0)], set()),  # so 64 fits
    ],
)
def test_a_second_run_out_of_memory_gives_up_all_larger_ones_that_have_never_trained(
    trials: list[Any], given_up: set[int]
) -> None:
    job = spec()
    arms = policy.describe(job, after(job, *trials), HARDWARE)
    assert {arm.batch_size for arm in arms if arm.status != "alive"} == given_up


def test_a_limit_of_memory_costs_few_runs() -> None:
    job = spec()
    for seed in range(5):
        state, rng = policy.initial_state(job), np.random.default_rng(seed)
        failed = 0
        for number in range(60):
            b = next_choice(policy, job, state, np.random.default_rng([1, number])).batch_size
            cost = 1000 * (1 + 0.6 * math.log2(128 / b)) * math.exp(rng.normal(0, 0.05))
            state = observe(job, state, b, cost, "out_of_memory" if b > 32 else "converged")
            failed += b > 32
        assert failed <= 3  # 128, 64, and one of them again


def test_exploration_fades() -> None:
    job, rng = spec(), np.random.default_rng(0)
    state, picks = policy.initial_state(job), []
    for number in range(120):
        choice = next_choice(policy, job, state, np.random.default_rng([1, number]))
        cost = 1000 * (1 + 0.3 * abs(math.log2(choice.batch_size / 16))) * rng.normal(1, 0.03)
        state = observe(job, state, choice.batch_size, cost)
        picks.append(choice)
    assert [choice.why for choice in picks[:2]] == ["explore"] * 2
    assert picks[20:].count(Choice(16, "exploit")) >= 95


def test_trials_in_flight_make_others_worth_more() -> None:
    job, state = spec(), after(spec(), (32, 1000.0))
    alone = choices(job, state)
    first = max(set(alone), key=alone.count)
    during = choices(job, policy.begin(job, state, first, HARDWARE))
    assert during.count(first) < alone.count(first) / 2


def test_the_bound_is_beta_times_the_estimated_cost_of_the_best() -> None:
    job = spec(beta_knob=3.0)
    assert math.isinf(policy.cost_bound(job, policy.initial_state(job), HARDWARE))
    state = after(job, *costs(16))
    best = min(arm.mean or math.inf for arm in policy.describe(job, state, HARDWARE))
    assert policy.cost_bound(job, state, HARDWARE) == pytest.approx(3 * best, rel=0.01)
    assert math.isinf(policy.cost_bound(spec(beta_knob=None), state, HARDWARE))


def test_one_lucky_run_hardly_lowers_the_bound() -> None:
    job = spec()
    state = after(job, *costs(16, noise=0.1))
    lucky = observe(job, state, 16, 400.0)
    assert policy.cost_bound(job, lucky, HARDWARE) > 0.8 * policy.cost_bound(job, state, HARDWARE)


def test_a_small_beta_does_not_stop_the_ordinary_runs_of_the_best() -> None:
    job = spec(beta_knob=1.01)
    state = after(job, *costs(16, noise=0.2, tries=20))
    assert policy.cost_bound(job, state, HARDWARE) > 1300


@pytest.mark.parametrize("slower", [1.5, 3.0, 20.0])
def test_a_job_that_becomes_slower_for_good_is_not_stopped_for_ever(slower: float) -> None:
    job = spec()
    state = after(job, *costs(16, tries=30))
    stopped = []
    for number in range(40):
        choice = next_choice(policy, job, state, np.random.default_rng(number))
        cost = slower * 1000 * (1 + 0.4 * abs(math.log2(choice.batch_size / 16)))
        bound = policy.cost_bound(job, state, HARDWARE)
        stopped.append(cost > bound)
        result: Result = "early_stopped" if cost > bound else "converged"
        state = observe(job, state, choice.batch_size, min(cost, bound), result)
    assert not any(stopped[20:])
    assert policy.best_batch_size(job, state, HARDWARE) == 16


def test_a_job_that_is_stopped_ever_again_still_decides() -> None:
    job = spec(batch_sizes=[32])
    state = after(job, (32, 1000.0), *[(32, 1000.0, "early_stopped")] * 1200)
    assert choices(job, state, 1)[0].batch_size == 32
    assert math.isfinite(policy.cost_bound(job, state, HARDWARE))


def test_costs_are_forgotten_when_the_job_changes_and_not_for_one_outlier() -> None:
    job = spec()
    state = after(job, *costs(16), (16, 3000.0))
    assert sum(state["epochs"]["weight"]) == 31
    state = after(job, *costs(16), *[(16, 3000.0)] * 3)
    assert sum(state["epochs"]["weight"]) <= 3
    assert {choice.batch_size for choice in choices(job, state)} != {16}


def recurring(
    job: JobSpec,
    state: State,
    log_costs: dict[int, float],
    count: int,
    seed: int = 1,
    failing: float = 0.0,
) -> tuple[State, list[int]]:
    """Let the policy choose, and runs converge but for a share; the state then, and the choices."""
    rng, chosen = np.random.default_rng(seed), []
    for number in range(count):
        b = next_choice(policy, job, state, np.random.default_rng([seed, number])).batch_size
        cost = 1000 * math.exp(log_costs[b] + rng.normal(0, 0.05))
        if failing and rng.random() < failing:
            state = observe(job, state, b, cost / 2, "diverged")
        else:
            state = observe(job, state, b, cost)
        chosen.append(b)
    return state, chosen


def test_the_batch_size_that_is_sought_is_alive_and_converges() -> None:
    """The second of four is not alive; the last one never converges in the second draw."""
    log_costs = np.array([[1.0, 0.0, 0.98, 0.5], [1.0, 0.0, 0.98, 0.5], [1.0, 0.0, 0.9, 1.5]])
    never = np.zeros((3, 4), bool)
    never[1, 3] = True
    found = information_directed._find_sought(log_costs, never, np.array([0, 2, 3]), best=0)
    assert [each.tolist() for each in found] == [[3, 0, 2], [0.5, 1.0, 0.9]]


def test_what_is_hardly_cheaper_is_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each octave away from the best batch size costs 2 % more, less than the noise of 5 %."""

    def changes() -> int:
        """How often the batch size changes in ten jobs."""
        count = 0
        for seed in range(10):
            job = spec(seed=seed)
            log_costs = {b: 0.02 * abs(math.log2(b / 32)) for b in job.batch_sizes}
            _, chosen = recurring(job, policy.initial_state(job), log_costs, 60, seed=seed)
            count += int(np.count_nonzero(np.diff(chosen)))
        return count

    with_a_limit = changes()
    monkeypatch.setattr(information_directed, "NEGLIGIBLE", 0.0)
    assert with_a_limit < 0.9 * changes()


def test_after_a_change_the_first_batch_size_tried_is_not_chosen_for_ever() -> None:
    job = spec(batch_sizes=[8, 16, 32, 64, 128, 256, 512], default_batch_size=64)
    rng = np.random.default_rng(0)
    before = [64] * 4 + [16] * 8 + [32] * 40
    costs = {16: 720.0, 32: 670.0, 64: 720.0}
    trials = [(b, costs[b] * math.exp(rng.normal(0, 0.08))) for b in before]
    state = after(job, *trials, (32, 1020.0), (16, 1150.0))
    assert np.flatnonzero(state["epochs"]["weight"]).tolist() == [
        1
    ]  # all other costs are forgotten
    for _ in range(4):
        assert {choice.batch_size for choice in choices(job, state)} != {16}
        state = observe(job, state, 16, 1120.0)


def test_a_job_that_becomes_cheaper_is_explored_again() -> None:
    before, found = {8: 0.5, 16: 0.0, 32: 0.2, 64: 0.35, 128: 0.5}, []
    after_change = {8: 0.1, 16: -0.1, 32: -0.3, 64: -0.4, 128: -0.25}
    for seed in range(4):
        job = spec(seed=seed)
        state, _ = recurring(job, policy.initial_state(job), before, 60, seed=seed)
        assert policy.best_batch_size(job, state, HARDWARE) == 16
        state, _ = recurring(job, state, after_change, 100, seed=seed)
        found.append(policy.best_batch_size(job, state, HARDWARE))
    assert found == [64] * 4


@pytest.mark.parametrize(("octave", "failing"), [(0.1, 0.0), (0.2, 0.1)])
def test_one_failure_of_a_batch_size_does_not_starve_it(octave: float, failing: float) -> None:
    """Runs of its neighbours converge, so the failure was probably bad luck.

    Where the next try fails as well, it is given up. One job in twenty never tries it again.
    """
    log_costs = {b: octave * abs(math.log2(b / 64)) for b in spec().batch_sizes}
    cost_of_32, chosen = 1000 * math.exp(octave), []
    for seed in range(20):
        job = spec(seed=seed)
        state = after(
            job, (64, 2000.0, "not_converged"), *[(32, cost_of_32)] * 9, (32, 9.0, "diverged")
        )
        state, picks = recurring(job, state, log_costs, 60, seed=seed, failing=failing)
        arm = next(arm for arm in policy.describe(job, state, HARDWARE) if arm.batch_size == 64)
        if arm.status == "alive":
            chosen.append(picks[-20:].count(64))
    assert len(chosen) >= (12 if failing else 20)
    assert sum(times < 15 for times in chosen) <= 1


@pytest.mark.parametrize("result", ["out_of_memory", "diverged"])
def test_a_batch_size_that_never_converges_again_is_left_after_few_failures(
    result: Result,
) -> None:
    """However often it has converged: the data may have grown."""
    job = spec()
    state, failures = after(job, *costs(64, tries=2), *[(64, 1000.0)] * 150), 0
    while (choice := next_choice(policy, job, state, np.random.default_rng(0))).batch_size >= 64:
        state, failures = observe(job, state, choice.batch_size, 500.0, result), failures + 1
        assert failures < 12
    assert failures >= 4  # fewer may be bad luck
    assert policy.best_batch_size(job, state, HARDWARE) == 32
    state = observe(job, state, 64, 1000.0)
    assert policy.best_batch_size(job, state, HARDWARE) == 64


def test_two_valleys_do_not_hide_the_better_one() -> None:
    log_costs, found = {8: 0.0, 16: 0.35, 32: 0.5, 64: 0.35, 128: 0.2}, []
    for seed in range(4):
        job = spec(seed=seed)
        state, _ = recurring(job, policy.initial_state(job), log_costs, 100, seed=seed)
        found.append(policy.best_batch_size(job, state, HARDWARE))
    assert found == [8] * 4


def test_a_first_run_that_took_far_too_long_is_not_the_best_and_is_tried_again() -> None:
    job = spec()
    state = after(job, (32, 7200.0), (16, 1680.0), (8, 1920.0))
    assert policy.best_batch_size(job, state, HARDWARE) == 16
    assert 32 in {choice.batch_size for choice in choices(job, state)}


def test_a_meter_that_does_not_count_teaches_no_cost() -> None:
    job = spec()
    state = after(job, (32, 0.0), (16, 0.0))
    assert math.isinf(policy.cost_bound(job, state, HARDWARE))
    assert policy.best_batch_size(job, state, HARDWARE) in (16, 32)
    assert {arm.mean for arm in policy.describe(job, state, HARDWARE)} == {None}


def test_a_person_is_shown_the_mean_cost_and_how_far_it_may_be_off() -> None:
    job = spec()
    state = after(job, *costs(16))
    for arm in policy.describe(job, state, HARDWARE):
        seen = [cost for b, cost in costs(16) if b == arm.batch_size]
        assert arm.pulls == 6
        assert arm.mean is not None
        assert arm.spread is not None
        assert abs(arm.mean - np.mean(seen)) < 2 * arm.spread < 0.15 * arm.mean
