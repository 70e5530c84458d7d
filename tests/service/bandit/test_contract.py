"""What every policy must do, whatever its method; the suite also runs on installed ones."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.jobs import HARDWARE, LEARNING, OTHER, PastTrial, next_choice, observation, spec
from zeus_service.bandit import fold
from zeus_service.bandit.outcomes import FINAL, RESUMABLE
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, Policy, State
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.simulation.replay import replay
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Workload

RESULTS = ["converged", "early_stopped", "not_converged", "diverged", "out_of_memory", None]

policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
learning_policies = pytest.mark.parametrize("policy", LEARNING.values(), ids=LEARNING)
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


class Perturbed(np.ndarray):
    """An array whose results are up to four units in the last place off, by chance."""

    rng = np.random.default_rng(0)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        plain = [np.asarray(each) if isinstance(each, Perturbed) else each for each in inputs]
        result = np.asarray(getattr(ufunc, method)(*plain, **options))
        if result.dtype == float:
            with np.errstate(over="ignore"):
                units = self.rng.integers(-4, 5, result.shape)
                # An infinite number has no last place.
                finite = np.where(np.isfinite(result), result, 0.0)
                result = result + units * np.spacing(finite)
        if out is not None:
            out[0][...] = result
            return out[0]
        return result.view(Perturbed)[()]


@contextmanager
def another_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Perturb every array that a policy makes, and every logarithm and exponential."""

    def array(*arguments: Any, make: Any = np.array, **options: Any) -> Any:
        made = make(*arguments, **options)
        return made.view(Perturbed) if made.dtype == float else made

    def perturbed(function: Callable[[float], float]) -> Callable[[float], float]:
        return lambda x: (y := function(x)) + int(Perturbed.rng.integers(-4, 5)) * math.ulp(y)

    forget_what_was_computed()
    with monkeypatch.context() as patch:
        patch.setattr(np, "array", array)
        patch.setattr(math, "log", perturbed(math.log))
        patch.setattr(math, "exp", perturbed(math.exp))
        yield
    forget_what_was_computed()


def forget_what_was_computed() -> None:
    """Clear the caches of all modules with policies."""
    for name, module in list(sys.modules.items()):
        if name.startswith("zeus_service.bandit"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def states(job: JobSpec, trials: list[PastTrial]) -> list[State]:
    """The state after each start and end of trials that follow one another."""
    (state, counts), found = fold.replay(job, []), []
    for trial in trials:
        begun = fold.begin(job, state, trial)
        state, counts = fold.end(job, begun, counts, trial)
        found += [begun, state]
    return found


@learning_policies
@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (synthetic_workload(2), {"beta_knob": 1.3}),
        (drifting_workload(3), {"beta_knob": 1.3}),
        (drifting_workload(3), {"beta_knob": 1.3, "window_size": 10}),
    ],
    ids=["early stops", "drift", "window"],
)
def test_the_state_does_not_depend_on_the_processor(
    policy: Policy,
    workload: Workload,
    knobs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = workload.spec(policy=policy.name, seed=1, **knobs)
    trials = [
        PastTrial(trial.batch_size, trial.why, trial.result, trial.cost, trial.epochs)
        for trial in replay(workload, job, 200)
    ]
    assert {trial.outcome for trial in trials} == {"converged", "early_stopped"}
    here = states(job, trials)
    with another_processor(monkeypatch):
        there = states(job, trials)
    assert there == here


@policies
def test_a_tie_does_not_depend_on_the_processor(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spec(batch_sizes=[8, 16], default_batch_size=8, policy=policy.name)
    # With a cost of one of them alone, both are expected to cost the same; one is less certain.
    trials = [
        PastTrial(8, "explore", "converged", 0.0),
        PastTrial(16, "explore", "converged", 1000.0),
        PastTrial(8, "explore", "early_stopped", 500.0),
    ]
    here = states(job, trials)
    for _ in range(20):
        with another_processor(monkeypatch):
            assert states(job, trials) == here


def test_another_processor_differs_in_what_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = POLICIES["information_directed"]
    job, choice = spec(), Choice(32, "explore")
    state = policy.begin(job, policy.initial_state(job), choice, HARDWARE)
    state = policy.observe(job, state, observation(choice, "converged", 1000.0))
    here = policy.cost_bound(job, state, HARDWARE)
    with another_processor(monkeypatch):
        there = policy.cost_bound(job, state, HARDWARE)
    assert there != here
    assert there == pytest.approx(here, rel=1e-9)


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
