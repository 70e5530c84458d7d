"""What every policy must do, whatever its method; the suite also runs on installed ones."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.jobs import HARDWARE, OTHER, PastTrial, next_choice, observation, spec
from zeus_service.bandit import fold
from zeus_service.bandit.outcomes import FINAL, RESUMABLE
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, Policy, State
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import Hardware, JobSpec

RESULTS = ["converged", "early_stopped", "not_converged", "diverged", "out_of_memory", None]

policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
specs = st.builds(
    lambda sizes, default, rounds, window, beta, explorations: spec(
        batch_sizes=sorted(sizes),
        default_batch_size=sorted(sizes)[default % len(sizes)],
        num_pruning_rounds=rounds,
        window_size=window,
        beta_knob=beta,
        mab_num_explorations=explorations,
    ),
    st.sets(st.integers(1, 4096), min_size=1, max_size=8),
    st.integers(0, 7),
    st.integers(0, 3),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([None, 1.1, 2.0]),
    st.integers(0, 3),
)
moves = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "control", "end", "end", "end"]),
        st.integers(0, 7),  # which running one
        st.sampled_from(RESULTS),
        st.floats(0, 1e12),
        st.sampled_from([HARDWARE, HARDWARE, OTHER]),  # of a start
    ),
    max_size=60,
)


def choose(
    policy: Policy,
    job: JobSpec,
    state: State,
    number: int,
    *,
    control: bool = False,
    hardware: Hardware = HARDWARE,
) -> Choice:
    """What a trial is started with."""
    if control:
        return Choice(job.default_batch_size, "control")
    return next_choice(policy, job, state, np.random.default_rng([1, number]), hardware)


def play(policy: Policy, job: JobSpec, moves: list[Any]) -> tuple[State, Choice | None]:
    """Play a history; return the state, and the next choice, None when all have failed."""
    state, running = policy.initial_state(job), []
    for number, (move, which, result, cost, hardware) in enumerate(moves):
        if move != "end" or not running:
            try:
                control = move == "control"
                choice = choose(policy, job, state, number, control=control, hardware=hardware)
            except NoBatchSizeLeft:
                continue
            assert choice.batch_size in job.batch_sizes
            state = policy.begin(job, state, choice, hardware)
            running.append((choice, hardware))
        else:
            choice, there = running.pop(which % len(running))
            state = policy.observe(job, state, observation(choice, result, cost, there))
    try:
        return state, next_choice(policy, job, state, np.random.default_rng(0))
    except NoBatchSizeLeft:
        return state, None


@policies
@given(job=specs, moves=moves)
@settings(max_examples=50, deadline=None)
def test_a_trial_without_a_result_leaves_no_trace(
    policy: Policy, job: JobSpec, moves: list[Any]
) -> None:
    state, choice = play(policy, job, moves)
    if choice:
        during = policy.begin(job, state, choice, HARDWARE)
        for hardware in (HARDWARE, OTHER):
            before = policy.cost_bound(job, state, hardware)
            assert policy.cost_bound(job, during, hardware) == before
        assert policy.observe(job, during, observation(choice, None, 123.0)) == state


@policies
@given(job=specs, moves=moves)
@settings(max_examples=50, deadline=None)
def test_a_state_is_json_and_no_function_changes_what_it_is_given(
    policy: Policy, job: JobSpec, moves: list[Any]
) -> None:
    state, choice = play(policy, job, moves)
    before = json.dumps(state, allow_nan=False)
    assert json.loads(before) == state
    if choice:
        during = policy.begin(job, state, choice, HARDWARE)
        assert json.dumps(state) == before
        between = json.dumps(during)
        policy.observe(job, during, observation(choice, "converged", 1.0))
        policy.observe(job, during, observation(choice, "out_of_memory", 1.0))
        assert json.dumps(during) == between
    policy.describe(job, state, HARDWARE)
    policy.cost_bound(job, state, HARDWARE)
    assert json.dumps(state) == before


@policies
@given(job=specs, moves=moves)
@settings(max_examples=50, deadline=None)
def test_what_a_person_is_shown_is_complete_and_finite(
    policy: Policy, job: JobSpec, moves: list[Any]
) -> None:
    state, choice = play(policy, job, moves)
    arms = policy.describe(job, state, HARDWARE)
    assert [arm.batch_size for arm in arms] == job.batch_sizes
    for arm in arms:
        assert arm.mean is None or math.isfinite(arm.mean)
        assert arm.spread is None or (math.isfinite(arm.spread) and arm.spread >= 0)
    best = policy.best_batch_size(job, state, HARDWARE)
    assert best is None or best in {arm.batch_size for arm in arms if arm.status == "alive"}
    assert any(arm.status == "alive" for arm in arms) == (choice is not None)
    assert policy.cost_bound(job, state, HARDWARE) >= 0


@policies
@given(job=specs, moves=moves, which=st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_out_of_memory_rules_out_no_batch_size_on_other_hardware(
    policy: Policy, job: JobSpec, moves: list[Any], which: int
) -> None:
    state, _ = play(policy, job, moves)
    before = policy.describe(job, state, OTHER)
    choice = Choice(job.batch_sizes[which % len(job.batch_sizes)], "explore")
    state = policy.begin(job, state, choice, HARDWARE)
    state = policy.observe(job, state, observation(choice, "out_of_memory", 0.0))
    after = policy.describe(job, state, OTHER)
    assert [arm.status == "alive" for arm in after] == [arm.status == "alive" for arm in before]


@policies
@given(job=specs, moves=moves)
@settings(max_examples=50, deadline=None)
def test_a_control_trial_is_learned_from_even_if_every_batch_size_has_failed(
    policy: Policy, job: JobSpec, moves: list[Any]
) -> None:
    state, _ = play(policy, job, moves)
    control = Choice(job.default_batch_size, "control")
    during = policy.begin(job, state, control, HARDWARE)
    assert policy.cost_bound(job, during, HARDWARE) == policy.cost_bound(job, state, HARDWARE)
    after = policy.observe(job, during, observation(control, "converged", 1000.0))
    pulls = {arm.batch_size: arm.pulls for arm in policy.describe(job, after, HARDWARE)}
    assert after != state
    assert pulls[job.default_batch_size] >= 1


histories = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "control", "end", "end", "end", "revive"]),
        st.integers(0, 7),  # which one
        st.sampled_from(sorted(FINAL | RESUMABLE)) | st.sampled_from(sorted(RESUMABLE)),
        st.floats(0, 1e12),
        st.sampled_from([HARDWARE, HARDWARE, OTHER]),  # of a start
    ),
    max_size=60,
)
"""Every outcome; half of the ends are without a result, so that three in a row are common."""


@policies
@given(job=specs, moves=histories)
@settings(max_examples=50, deadline=None)
def test_the_state_depends_on_the_order_of_ends_alone(
    policy: Policy, job: JobSpec, moves: list[Any]
) -> None:
    """Up to four trials at once, and trials that run again although they had ended."""
    job = job.model_copy(update={"policy": policy.name})
    state, counts = fold.replay(job, [])
    running: list[PastTrial] = []
    ended: list[PastTrial] = []
    for number, (move, which, outcome, cost, hardware) in enumerate(moves):
        if move == "end" and running:
            trial = running.pop(which % len(running))
            trial.outcome, trial.cost = outcome, cost
            state, counts = fold.end(job, state, counts, trial)
            ended.append(trial)
        elif move == "revive":
            resumable = [trial for trial in ended if trial.outcome in RESUMABLE]
            if not resumable or len(running) == 4:
                continue
            trial = resumable[which % len(resumable)]
            before = [*(replace(each) for each in ended), *running]
            ended = [each for each in ended if each is not trial]  # others may be equal
            trial.outcome = None
            running.append(trial)
            state, counts = fold.revive(job, state, before, [*ended, *running])
        elif len(running) < 4:
            try:
                control = move == "control"
                choice = choose(policy, job, state, number, control=control, hardware=hardware)
            except NoBatchSizeLeft:
                continue
            running.append(PastTrial(choice.batch_size, choice.why, hardware=hardware))
            state = fold.begin(job, state, running[-1])
    assert fold.replay(job, [*ended, *running]) == (state, counts)


@policies
@given(job=specs, moves=moves, ends=st.lists(st.integers(0, 7), max_size=12), usable=st.integers(1))
@settings(max_examples=50, deadline=None)
def test_a_batch_size_is_passed_over_if_another_one_is_left(
    policy: Policy, job: JobSpec, moves: list[Any], ends: list[int], usable: int
) -> None:
    job, sizes = job.model_copy(update={"policy": policy.name}), job.batch_sizes
    state, _ = play(policy, job, moves)
    counts, _ = fold.count_ends((sizes[each % len(sizes)], "errored") for each in ends)
    some = [size for index, size in enumerate(sizes) if usable >> index & 1] or sizes
    rng = np.random.default_rng
    try:
        chosen = fold.choose(job, state, counts, HARDWARE, rng(1), some).batch_size
    except NoBatchSizeLeft:
        return
    assert chosen in some
    passed = fold.passed_over(counts)
    others = [size for size in some if size not in passed]
    if chosen in passed and others:
        with pytest.raises(NoBatchSizeLeft):
            policy.next_batch_size(job, state, HARDWARE, rng(1), others)


@policies
def test_a_thousand_trials_leave_a_small_state_that_still_decides(policy: Policy) -> None:
    job, rng = spec(window_size=10), np.random.default_rng(0)
    results = ["converged"] * 8 + ["early_stopped", "not_converged"]
    state = policy.initial_state(job)
    for number in range(1_000):
        choice = Choice(job.batch_sizes[number % 3], "exploit")
        state = policy.begin(job, state, choice, HARDWARE)
        result = results[number // 3 % 10]
        state = policy.observe(job, state, observation(choice, result, rng.normal(1e3, 100)))
    assert len(json.dumps(state, allow_nan=False)) < 3000
    assert next_choice(policy, job, state, rng).batch_size in job.batch_sizes
    assert policy.cost_bound(job, state, HARDWARE) > 1000


@policies
def test_the_only_batch_size_is_always_taken(policy: Policy) -> None:
    job, rng = spec(batch_sizes=[32]), np.random.default_rng(0)
    state = policy.initial_state(job)
    for _ in range(50):
        choice = next_choice(policy, job, state, rng)
        assert choice.batch_size == 32
        state = policy.begin(job, state, choice, HARDWARE)
        state = policy.observe(job, state, observation(choice, "converged", rng.normal(1e3, 50)))
    assert policy.best_batch_size(job, state, HARDWARE) == 32


@policies
@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("window_size", [0, 1])
def test_all_failing_is_an_error_not_a_loop(policy: Policy, rounds: int, window_size: int) -> None:
    job = spec(num_pruning_rounds=rounds, window_size=window_size)
    state = policy.initial_state(job)

    def fail_100_trials(state: State) -> None:
        for number in range(100):
            choice = next_choice(policy, job, state, np.random.default_rng(number))
            state = policy.begin(job, state, choice, HARDWARE)
            state = policy.observe(job, state, observation(choice, "not_converged", 1.0))

    with pytest.raises(NoBatchSizeLeft):
        fail_100_trials(state)
