"""One recurring job, whose runs may overlap."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.simulation import recorded
from zeus_service.bandit.policy import NoBatchSizeLeft
from zeus_service.bandit.registry import POLICIES
from zeus_service.simulation.replay import MAX_TRIES, SimulatedJob, Submission, replay
from zeus_service.simulation.synthetic_workloads import synthetic_workload
from zeus_service.simulation.workload import Setting

from benchmarks.family import busy_submissions

policies = pytest.mark.parametrize("policy", POLICIES)


@policies
@given(seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_every_recurrence_is_tried_until_it_reaches_the_target(policy: str, seed: int) -> None:
    workload = synthetic_workload(seed)
    trials = replay(workload, workload.spec(policy=policy, seed=seed), 40)
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    for before, after in pairwise(trials):
        assert after.recurrence == before.recurrence + (before.result == "converged")
    assert trials[-1].recurrence == 39
    assert trials[-1].result == "converged"


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


def at(*times: tuple[float, float]) -> tuple[Submission, ...]:
    return tuple(Submission(start_s, end_s, 1.0) for start_s, end_s in times)


def test_results_arrive_in_the_order_in_which_runs_end() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1, beta_knob=None)
    overlapping = at((0, 100), (10, 50), (20, 60), (30, 40))
    trials = replay(workload, spec, overlapping)
    assert [trial.number for trial in trials] == [4, 2, 3, 1]
    assert [trial.why for trial in trials] == [*["concurrent"] * 3, "explore"]


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
    ended = [(trial.number, trial.recurrence) for trial in trials[:4]]
    assert ended == [(1, 0), (2, 1), (3, 2), (4, 1)]
    assert trials[1].result == "early_stopped"


def test_a_submission_that_takes_longer_costs_more_and_teaches_the_same() -> None:
    workload = recorded.workload()
    spec = workload.spec(policy="zeus", seed=1)
    apart = at(*((1000.0 * index, 1000.0 * index + 10) for index in range(30)))
    doubled = replay(workload, spec, [replace(each, runtime_ratio=2.0) for each in apart])
    for trial, plain in zip(doubled, replay(workload, spec, 30), strict=True):
        twice = {name: 2 * getattr(plain, name) for name in ("time_s", "energy_j", "cost")}
        assert trial == replace(plain, **twice)


@policies
def test_every_submission_of_a_busy_cluster_reaches_its_target(policy: str) -> None:
    workload = synthetic_workload(2)
    for number in range(5):
        spec = workload.spec(policy=policy, seed=1)
        trials = replay(workload, spec, busy_submissions(3, number, 60))
        reached = [trial.recurrence for trial in trials if trial.result == "converged"]
        assert sorted(reached) == list(range(60))
        assert sorted(trial.number for trial in trials) == list(range(1, len(trials) + 1))
