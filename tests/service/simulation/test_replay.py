"""One recurring job."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.jobs import LEARNING
from service.simulation import recorded
from zeus_service.bandit import fold as history
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft
from zeus_service.bandit.registry import POLICIES
from zeus_service.simulation.replay import MAX_TRIES, SimulatedJob, replay
from zeus_service.simulation.simulated_run import TrialRunner
from zeus_service.simulation.synthetic_workloads import drifting_workload, synthetic_workload
from zeus_service.simulation.workload import Setting

policies = pytest.mark.parametrize("policy", POLICIES)


@policies
@given(seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_every_recurrence_is_tried_until_it_reaches_the_target(policy: str, seed: int) -> None:
    workload = synthetic_workload(seed)
    trials = replay(workload, workload.spec(policy=policy, seed=seed), 40)
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    for before, after in pairwise(trials):
        assert after.recurrence == before.recurrence + (before.verdict == "converged")
    assert trials[-1].recurrence == 39
    assert trials[-1].verdict == "converged"


@pytest.mark.parametrize("policy", LEARNING)
def test_the_same_seed_gives_the_same_history_and_another_seed_another(policy: str) -> None:
    workload = synthetic_workload(4)
    one, same, other = (
        replay(workload, workload.spec(policy=policy, seed=seed), 60) for seed in (7, 7, 8)
    )
    assert one == same
    assert one != other


@policies
def test_the_state_is_the_fold_of_the_history(policy: str) -> None:
    workload = synthetic_workload(4)
    spec = workload.spec(policy=policy, seed=7)
    job, runner, events = SimulatedJob(spec), TrialRunner(spec), []
    for trial in replay(workload, spec, 60):
        started = job.start()
        assert started.choice == Choice(trial.batch_size, trial.why)
        assert runner.run(workload, started, trial.recurrence) == trial
        job.end(started, trial.verdict, trial.cost)
        events += [
            history.Event("started", trial.number, started.choice),
            history.Event("ended", trial.number, started.choice, trial.verdict, trial.cost),
        ]
    assert job.state == history.fold(spec, events)
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
        if trial.verdict == "early_stopped":
            price = workload.settings[trial.batch_size].price(0.5, workload.max_power_w)
            assert trial.epochs == 1.5 * lowest // price.epoch_cost
        if trial.verdict == "converged":
            lowest = min(lowest, trial.cost)
    assert any(trial.verdict == "early_stopped" for trial in trials)


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
        job.end(job.start(), trial.verdict, trial.cost)
    with pytest.raises(NoBatchSizeLeft):
        job.start()


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
