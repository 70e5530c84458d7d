"""The policy of the paper, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.jobs import HARDWARE, next_choice, observation, spec
from zeus_service.bandit.outcomes import Result
from zeus_service.bandit.policy import Choice, State
from zeus_service.bandit.spec import JobSpec
from zeus_service.bandit.zeus import ZeusPolicy

policy = ZeusPolicy()
RNG = np.random.default_rng(0)


def run(
    job: JobSpec, state: State, cost: float, result: Result | None = "converged"
) -> tuple[Choice, State]:
    """One trial, started and ended."""
    choice = next_choice(policy, job, state, RNG)
    state = policy.begin(job, state, choice, HARDWARE)
    return choice, policy.observe(job, state, observation(choice, result, cost))


def prune(job: JobSpec, outcomes: list[Mapping[int, float | Result]]) -> tuple[list[int], State]:
    """Play pruning rounds: a cost for those that converge, a result for those that fail."""
    state, order = policy.initial_state(job), []
    for number, round_outcomes in enumerate(outcomes, 1):
        while state["round"] == number:
            batch_size = next_choice(policy, job, state, RNG).batch_size
            outcome = round_outcomes[batch_size]
            if isinstance(outcome, str):
                choice, state = run(job, state, 5.0, outcome)
            else:
                choice, state = run(job, state, outcome)
            assert choice.why == "explore"
            order.append(batch_size)
    return order, state


def is_alive(job: JobSpec, state: State) -> bool:
    """Whether any batch size is left to try."""
    return any(arm.status == "alive" for arm in policy.describe(job, state, HARDWARE))


def test_a_start_during_an_exploration_gets_the_cheapest_known() -> None:
    job, state = spec(), policy.initial_state(spec())
    _, state = run(job, state, 20.0)
    _, state = run(job, state, 10.0)  # 16
    state = policy.begin(job, state, next_choice(policy, job, state, RNG), HARDWARE)
    assert next_choice(policy, job, state, RNG) == Choice(16, "concurrent")


def test_a_start_during_an_exploration_avoids_a_default_that_failed() -> None:
    job, state = spec(), policy.initial_state(spec())
    _, state = run(job, state, 20.0, "not_converged")
    state = policy.begin(job, state, next_choice(policy, job, state, RNG), HARDWARE)
    assert next_choice(policy, job, state, RNG) == Choice(64, "concurrent")


@pytest.mark.parametrize("result", ["converged", "not_converged"])
def test_a_concurrent_trial_counts_for_its_arm_not_for_the_round(result: Result) -> None:
    job, state = spec(), policy.initial_state(spec())
    slow = next_choice(policy, job, state, RNG)
    state = policy.begin(job, state, slow, HARDWARE)
    concurrent = next_choice(policy, job, state, RNG)
    state = policy.begin(job, state, concurrent, HARDWARE)
    state = policy.observe(job, state, observation(concurrent, result, 10.0))
    assert policy.describe(job, state, HARDWARE)[2].pulls == 1
    assert next_choice(policy, job, state, RNG).why == "concurrent"
    state = policy.observe(job, state, observation(slow, "converged", 20.0))
    assert next_choice(policy, job, state, RNG) == Choice(16, "explore")


def test_without_pruning_rounds_arms_are_explored_in_random_order() -> None:
    job = spec(num_pruning_rounds=0, mab_num_explorations=2)
    first = {
        next_choice(policy, job, policy.initial_state(job), np.random.default_rng(seed))
        for seed in range(60)
    }
    assert first == {Choice(b, "explore") for b in job.batch_sizes}
    state, pulls = policy.initial_state(job), []
    for _ in range(10):
        choice, state = run(job, state, 10.0)
        pulls.append(choice.batch_size)
        assert choice.why == "explore"
    assert sorted(pulls) == sorted(job.batch_sizes * 2)
    assert next_choice(policy, job, state, RNG).why == "exploit"


def test_explorations_in_flight_count_when_arms_are_short_of_observations() -> None:
    job = spec(num_pruning_rounds=0, mab_num_explorations=1, batch_sizes=[16, 32])
    state = policy.initial_state(job)
    for _ in range(2):
        state = policy.begin(job, state, next_choice(policy, job, state, RNG), HARDWARE)
    assert next_choice(policy, job, state, RNG) == Choice(32, "concurrent")


def observe(job: JobSpec, state: State, batch_size: int, cost: float, result: Result) -> State:
    """The end of an exploration."""
    return policy.observe(job, state, observation(Choice(batch_size, "explore"), result, cost))


def test_the_first_result_of_a_round_stands() -> None:
    job, state = spec(), policy.initial_state(spec())
    state = observe(job, state, 32, 10.0, "converged")
    state = observe(job, state, 32, 10.0, "not_converged")
    assert state["tried"] == {"32": True}


def test_out_of_memory_leaves_the_results_of_smaller_ones() -> None:
    job, state = spec(), policy.initial_state(spec())
    for batch_size in (32, 16, 8):
        state = observe(job, state, batch_size, 10.0, "converged")
    state = observe(job, state, 64, 0.0, "out_of_memory")
    assert (state["round"], state["candidates"]) == (2, [8, 16, 32])


def test_out_of_memory_of_a_smaller_one_keeps_the_only_one_that_has_converged() -> None:
    job = spec(default_batch_size=64)
    state = observe(job, policy.initial_state(job), 64, 10.0, "converged")
    state = observe(job, state, 32, 0.0, "out_of_memory")
    assert policy.best_batch_size(job, state, HARDWARE) == 64
    assert next_choice(policy, job, state, RNG) == Choice(16, "explore")
    state = observe(job, state, 16, 20.0, "early_stopped")
    assert next_choice(policy, job, state, RNG).batch_size == 64


def test_out_of_memory_gives_up_larger_ones_that_converged_if_a_smaller_one_has_too() -> None:
    job = spec(default_batch_size=64)
    state = policy.initial_state(job)
    for batch_size in (64, 32, 16):
        state = observe(job, state, batch_size, 10.0, "converged")
    state = observe(job, state, 32, 0.0, "out_of_memory")
    assert state["candidates"] == [8, 16]


@given(
    rounds=st.integers(0, 3),
    window=st.sampled_from([0, 2, 4]),
    ends=st.lists(
        st.tuples(
            st.integers(1, 3),  # how many trials run at once
            st.integers(0, 2),  # which of them ends
            st.sampled_from(
                ["converged", "early_stopped", "not_converged", "diverged", "out_of_memory"]
            ),
            st.floats(0, 1e6),
        ),
        max_size=40,
    ),
)
def test_a_job_in_which_a_batch_size_has_converged_is_never_exhausted(
    rounds: int, window: int, ends: list[tuple[int, int, Result, float]]
) -> None:
    job = spec(default_batch_size=64, num_pruning_rounds=rounds, window_size=window)
    state, running, has_converged = policy.initial_state(job), list[Choice](), False
    for number, (at_once, which, result, cost) in enumerate(ends):
        while len(running) < at_once and is_alive(job, state):
            rng = np.random.default_rng(number)
            running.append(next_choice(policy, job, state, rng))
            state = policy.begin(job, state, running[-1], HARDWARE)
        if not running:
            break
        choice = running.pop(which % len(running))
        state = policy.observe(job, state, observation(choice, result, cost))
        has_converged |= result == "converged"
        if has_converged:
            assert next_choice(policy, job, state, RNG).batch_size in job.batch_sizes
            assert is_alive(job, state)


def test_without_pruning_rounds_an_arm_that_never_converges_is_given_up() -> None:
    job = spec(num_pruning_rounds=0, batch_sizes=[16, 32])
    state = policy.initial_state(job)
    for result in ("converged", "not_converged"):
        state = observe(job, state, 16, 10.0, result)
        state = observe(job, state, 32, 10.0, "not_converged")
    assert state["candidates"] == [16]


def test_a_window_smaller_than_the_explorations_still_ends_them() -> None:
    job = spec(num_pruning_rounds=0, batch_sizes=[16, 32], window_size=1, mab_num_explorations=3)
    state = policy.initial_state(job)
    for batch_size in (16, 32):
        state = observe(job, state, batch_size, 10.0, "converged")
    assert next_choice(policy, job, state, RNG).why == "exploit"


def test_with_a_window_the_bound_forgets_a_lucky_run_of_a_pruned_arm() -> None:
    job = spec(window_size=3)
    first: dict[int, float | Result] = {32: 50.0, 16: 10.0, 8: "diverged", 64: "diverged"}
    second: dict[int, float | Result] = {16: "early_stopped", 32: 50.0}
    _, state = prune(job, [first, second])
    assert state["candidates"] == [32]
    assert policy.cost_bound(job, state, HARDWARE) == 100.0


def test_a_window_forgets_what_is_older() -> None:
    job = spec(num_pruning_rounds=0, batch_sizes=[16, 32], window_size=3)
    state = policy.initial_state(job)
    for batch_size, costs in ((16, [10, 11, 12, 100, 110, 120]), (32, [50, 51, 52])):
        for cost in costs:
            choice = Choice(batch_size, "exploit")
            state = policy.observe(job, state, observation(choice, "converged", float(cost)))
    assert policy.best_batch_size(job, state, HARDWARE) == 32
    assert policy.cost_bound(job, state, HARDWARE) == 100.0
    arm = policy.describe(job, state, HARDWARE)[0]
    assert (arm.pulls, arm.mean) == (3, pytest.approx(110.0))


def test_the_bound_is_beta_times_the_lowest_cost_above_zero_that_converged() -> None:
    job, state = spec(beta_knob=1.5), policy.initial_state(spec())
    _, state = run(job, state, 0.0)
    assert math.isinf(policy.cost_bound(job, state, HARDWARE))
    _, state = run(job, state, 20.0)
    _, state = run(job, state, 10.0, "early_stopped")
    assert policy.cost_bound(job, state, HARDWARE) == 30.0
    assert math.isinf(policy.cost_bound(spec(beta_knob=None), state, HARDWARE))


def test_the_bound_may_be_taken_from_every_run_that_its_reports_ended() -> None:
    job = spec(early_stop="spent", window_size=2)
    state = policy.initial_state(job)
    ends: list[tuple[float, Result, float]] = [
        (1.0, "diverged", math.inf),
        (1.0, "out_of_memory", math.inf),
        (0.0, "converged", math.inf),
        (30.0, "not_converged", 60.0),
        (40.0, "converged", 60.0),
        (20.0, "early_stopped", 40.0),
        (50.0, "converged", 40.0),
    ]
    for cost, result, bound in ends:
        state = observe(job, state, 32, cost, result)
        assert policy.cost_bound(job, state, HARDWARE) == bound
    assert math.isinf(policy.cost_bound(spec(early_stop="spent", beta_knob=None), state, HARDWARE))


def test_a_run_that_diverges_at_once_does_not_count_as_cheap() -> None:
    costs = {8: 30.0, 16: 20.0, 32: 10.0, 64: 20.0, 128: 30.0}
    job = spec()
    _, state = prune(job, [costs, costs])
    for _ in range(3):
        choice = Choice(32, "exploit")
        state = policy.observe(job, state, observation(choice, "diverged", 0.001))
    arm = next(arm for arm in policy.describe(job, state, HARDWARE) if arm.batch_size == 32)
    assert arm.mean == pytest.approx((10 + 10 + 3 * 20) / 5)
