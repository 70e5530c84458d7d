"""One recurring job, whose runs may overlap."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.jobs import LEARNING, PastTrial, next_choice
from service.simulation import recorded
from zeus_service.bandit import fold
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft
from zeus_service.bandit.registry import POLICIES
from zeus_service.simulation.recordings import Submission
from zeus_service.simulation.replay import MAX_TRIES, PATIENCE, SimulatedJob, replay
from zeus_service.simulation.simulated_run import SimulatedTrial, TrialRunner
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Setting

from benchmarks.family import busy_submissions

policies = pytest.mark.parametrize("policy", POLICIES)


@policies
@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_every_recurrence_is_tried_until_it_reaches_the_target(policy: str, seed: int) -> None:
    workload = synthetic_workload(seed)
    trials = replay(workload, workload.spec(policy=policy, seed=seed), 40)
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    for before, after in pairwise(trials):
        assert after.recurrence == before.recurrence + (before.result == "converged")
    assert trials[-1].recurrence == 39
    assert trials[-1].result == "converged"


@pytest.mark.parametrize("policy", LEARNING)
def test_the_same_seed_gives_the_same_history_and_another_seed_another(policy: str) -> None:
    workload = synthetic_workload(4)
    one, same, other = (
        replay(workload, workload.spec(policy=policy, seed=seed), 60) for seed in (7, 7, 8)
    )
    assert one == same
    assert one != other


@policies
def test_baselines_train_past_the_target_and_the_policy_observes_them_up_to_it(policy: str) -> None:
    workload = replace(synthetic_workload(4), max_epochs=10**6)
    learning = workload.spec(policy=policy, seed=7, target_metric=None, baseline_runs=4)
    trials = replay(workload, learning, 60)
    baselines = trials[:4]
    assert [trial.why == "baseline" for trial in trials] == [True] * 4 + [False] * (len(trials) - 4)
    assert {trial.batch_size for trial in baselines} == {workload.default_batch_size}
    defaults = replay(workload, workload.spec(policy="default", seed=7), 4)
    for baseline, default in zip(baselines, defaults, strict=True):
        assert baseline.epochs == default.epochs
        longer = (default.epochs + PATIENCE) / default.epochs
        assert baseline.cost == pytest.approx(longer * default.cost)
        assert baseline.energy_j == pytest.approx(longer * default.energy_j)
    observed = [
        PastTrial(
            each.batch_size, "control", each.result, each.cost, each.epochs, workload.hardware
        )
        for each in defaults
    ]
    state, _ = fold.replay(learning, observed)
    rng = np.random.default_rng([7, 5])
    fifth = next_choice(POLICIES[policy], learning, state, rng, workload.hardware)
    assert fifth == Choice(trials[4].batch_size, trials[4].why)


@policies
def test_the_state_is_the_replay_of_the_trials(policy: str) -> None:
    workload = synthetic_workload(4)
    spec = workload.spec(policy=policy, seed=7)
    job, runner, trials = SimulatedJob(spec), TrialRunner(spec), []
    for trial in replay(workload, spec, 60):
        started = job.start(workload.hardware)
        assert started.choice == Choice(trial.batch_size, trial.why)
        assert runner.run(workload, started, trial.recurrence) == trial
        job.end(started, trial.result, trial.cost, trial.epochs)
        trials.append(
            PastTrial(
                trial.batch_size,
                trial.why,
                trial.result,
                trial.cost,
                trial.epochs,
                workload.hardware,
            )
        )
    assert job.state == fold.replay(spec, trials)[0]
    assert json.loads(json.dumps(job.state)) == job.state


def test_a_cost_is_that_of_the_job() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1, eta_knob=0.3)
    for trial in replay(workload, spec, 20):
        expected = 0.3 * trial.energy_j + 0.7 * 200.0 * trial.time_s
        assert trial.cost == pytest.approx(expected)


def test_a_run_is_stopped_before_it_crosses_beta_times_the_lowest_cost() -> None:
    workload = recorded.workload()
    trials = replay(workload, workload.spec(policy="zeus", seed=1, beta_knob=1.5), 60)
    lowest = math.inf
    for trial in trials:
        if trial.result == "early_stopped":
            price = workload.settings[trial.batch_size].price(0.5, workload.max_power_w)
            assert trial.epochs == 1.5 * lowest // price.epoch_cost
        if trial.result == "converged":
            lowest = min(lowest, trial.cost)
    assert any(trial.result == "early_stopped" for trial in trials)


def test_a_recurrence_is_given_up_after_its_last_try() -> None:
    works = recorded.workload()
    never = {size: Setting((math.inf,), each.epochs) for size, each in works.settings.items()}
    drift = replace(works, phases=(works, replace(works, settings=never)), phase_length=30)
    trials = replay(drift, drift.spec(policy="zeus", seed=1, beta_knob=None), 33)
    tries = [sum(trial.recurrence == index for trial in trials) for index in range(33)]
    assert tries[30:] == [MAX_TRIES] * 3


def test_a_recurrence_without_a_batch_size_left_has_no_trial() -> None:
    works = recorded.workload()
    never = {size: Setting((math.inf,), each.epochs) for size, each in works.settings.items()}
    workload = replace(works, settings=never)
    spec = workload.spec(policy="zeus", seed=1)
    trials = replay(workload, spec, 5)
    assert [(trial.recurrence, trial.batch_size) for trial in trials] == [(0, 16), (0, 32)]
    job = SimulatedJob(spec)
    for trial in trials:
        job.end(job.start(workload.hardware), trial.result, trial.cost, trial.epochs)
    with pytest.raises(NoBatchSizeLeft):
        job.start(workload.hardware)


def test_a_drifting_workload_changes_with_the_recurrence() -> None:
    drift = drifting_workload(0, phases=4, length=10)
    assert [drift.at(index) for index in (0, 9, 10, 39, 1000)] == [
        drift.phases[0],
        drift.phases[0],
        drift.phases[1],
        drift.phases[3],
        drift.phases[3],
    ]
    assert drift.horizon == 40
    assert drift.phases[0].oracle(0.5) != drift.phases[-1].oracle(0.5)


def apart(count: int) -> tuple[Submission, ...]:
    """Submissions so far apart that the last retry of one ends before the next starts."""
    return tuple(Submission(1000.0 * index, 1000.0 * index + 10, 1.0) for index in range(count))


def at(*times: tuple[float, float]) -> tuple[Submission, ...]:
    return tuple(Submission(start_s, end_s, 1.0) for start_s, end_s in times)


@policies
def test_submissions_that_do_not_overlap_are_one_recurring_job(policy: str) -> None:
    workload = synthetic_workload(4)
    spec = workload.spec(policy=policy, seed=1)
    assert replay(workload, spec, apart(50)) == replay(workload, spec, 50)


def test_what_starts_while_another_explores_is_concurrent() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1)
    trials = replay(workload, spec, at((0, 100), (10, 50), (20, 90), (200, 210)))
    by_number = {trial.number: trial for trial in trials}
    assert [by_number[number].why for number in (1, 2, 3, 4)] == [
        "explore",
        "concurrent",
        "concurrent",
        "explore",
    ]
    assert by_number[2].batch_size == workload.default_batch_size


def test_results_arrive_in_the_order_in_which_runs_end() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1, beta_knob=None)
    overlapping = at((0, 100), (10, 50), (20, 60), (30, 40))
    trials = replay(workload, spec, overlapping)
    assert [trial.number for trial in trials] == [4, 2, 3, 1]


def test_a_run_that_ends_when_another_starts_is_known_by_then() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1)
    ended, running = (
        replay(workload, spec, at((0, 100), (start_s, 300)))[1] for start_s in (100.0, 99.0)
    )
    assert (ended.why, running.why) == ("explore", "concurrent")


def test_a_failed_run_is_retried_when_it_fails_and_takes_as_long_again() -> None:
    works = recorded.workload()
    # The default works; the next smaller one, which is explored second, never reaches the target.
    workload = replace(
        works, settings=works.settings | {8: Setting((math.inf,), works.settings[8].epochs)}
    )
    spec = workload.spec(policy="zeus", seed=1)
    # Trial 2 fails at 200; its retry, trial 4, runs from 200 to 300, past the end of trial 3.
    trials = replay(workload, spec, at((0, 10), (100, 200), (150, 290), (295, 400)))
    assert [(trial.number, trial.recurrence) for trial in trials[:4]] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 1),
    ]
    assert trials[1].result == "early_stopped"


def test_a_submission_that_takes_longer_costs_more_and_teaches_the_same() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1)
    plain = replay(workload, spec, apart(30))
    doubled = replay(workload, spec, tuple(replace(each, runtime_ratio=2.0) for each in apart(30)))

    def twice(trial: SimulatedTrial) -> SimulatedTrial:
        return replace(
            trial, time_s=2 * trial.time_s, energy_j=2 * trial.energy_j, cost=2 * trial.cost
        )

    assert doubled == [twice(trial) for trial in plain]


@policies
def test_every_submission_of_a_busy_cluster_reaches_its_target(policy: str) -> None:
    workload = synthetic_workload(2)
    for number in range(5):
        spec = workload.spec(policy=policy, seed=1)
        trials = replay(workload, spec, busy_submissions(3, number, 60))
        reached = [trial.recurrence for trial in trials if trial.result == "converged"]
        assert sorted(reached) == list(range(60))
        assert sorted(trial.number for trial in trials) == list(range(1, len(trials) + 1))
