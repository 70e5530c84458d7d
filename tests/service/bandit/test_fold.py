"""A job's state follows from its trials, and each choice from the state and the job's seed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.conftest import on_sqlite
from service.jobs import HARDWARE, OTHER, register, report
from sqlalchemy import update
from zeus_service import maintenance, optimizer
from zeus_service.bandit.fold import count_ends
from zeus_service.bandit.registry import POLICIES
from zeus_service.db.savings import load_eras
from zeus_service.db.session import transaction
from zeus_service.db.tables import Job, Trial
from zeus_service.errors import ExhaustedJob, NotCompleted, TrialFinished
from zeus_service.savings.ledger import LEAST_AMOUNT

job_ids = (f"job-{number}" for number in itertools.count())

costs = st.floats(0, 1e9)

OUTCOMES = ["diverged", "out_of_memory", "interrupted", "errored", "withdrawn", "completed"]
moves = st.lists(
    st.tuples(
        st.sampled_from(["start", "control", "report", "report", "end", "expire"]),
        st.integers(0, 5),  # which trial
        costs,  # what it cost
        st.floats(0, 1),  # how far it came
        st.sampled_from(OUTCOMES),
    ),
    max_size=40,
)
crashes = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "end", "end", "report"]),
        st.integers(0, 3),
        costs,
        st.sampled_from([0.1, 0.1, 0.1, 1.0]),
        st.sampled_from(["interrupted", "errored", "completed"]),
    ),
    min_size=10,
    max_size=60,
)
"""Moves after which ends without a result count as results, and trials come back."""


def play(job_id: str, moves: list[Any]) -> None:
    """Carry moves out through the use cases; some of them are refused, as they would be."""
    started, sequence = 0, itertools.count(1)
    for move, which, cost, metric, outcome in moves:
        number = max(1, started - which)
        try:
            if move in ("start", "control") or not started:
                control = move == "control"
                hardware = (HARDWARE, OTHER)[which % 2]
                start = optimizer.start_trial(job_id, hardware=hardware, control=control)
                started = start[1].trial_number
            elif move == "report":
                given = report(next(sequence), epoch=1, time_s=1.0, energy_j=cost, metric=metric)
                optimizer.report(job_id, number, given)
            elif move == "end":
                optimizer.end_trial(job_id, number, outcome)
            else:
                this = Trial.trial_number == number
                with transaction() as session:
                    session.execute(update(Trial).where(this).values(lease_expires_at=0))
        except (TrialFinished, ExhaustedJob, NotCompleted):
            continue


@on_sqlite
@given(
    moves=moves | crashes,
    policy=st.sampled_from(sorted(POLICIES)),
    window=st.sampled_from([0, 3]),
    early_stop=st.sampled_from(["expected", "spent"]),
    target=st.sampled_from([0.5, None]),  # None: it is learned
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_stored_state_is_the_replay_of_the_trials(
    app: Flask, moves: list[Any], policy: str, window: int, early_stop: str, target: float | None
) -> None:
    job_id = next(job_ids)
    changes = {"policy": policy, "window_size": window, "early_stop": early_stop, "seed": 1}
    changes |= {"target_metric": target, "baseline_runs": 2}
    register(job_id=job_id, hardware=None, **changes)
    play(job_id, moves)
    job = optimizer.get_job(job_id)
    assert (job.spec["target_metric"] is None) == (target is None and job.completed_baselines < 2)
    before = eras(job)
    assert maintenance.rebuild(job_id)
    assert eras(job) == before


def eras(job: Job) -> list[tuple[Any, ...]]:
    """A job's eras and their trials, but for those that have spent nothing, or run again."""
    with transaction(read_only=True) as session:
        every = load_eras(session, job)
    found = []
    for era in every:
        spent = era.energy_j, era.time_s, era.cost
        if era.recurrences or max(spent) >= LEAST_AMOUNT:
            trials = optimizer.list_trials(str(job.job_id), limit=1000)
            numbers = [each.trial_number for each in trials if each.era == era.number]
            amounts = [f"{amount:.8g}" for amount in spent]
            found.append((era.hardware.key, era.recurrences, amounts, numbers))
    return sorted(found)


@on_sqlite
@pytest.mark.parametrize("policy", ["zeus", "information_directed"])
def test_a_revival_of_an_end_that_counted_replays_the_job(app: Flask, policy: str) -> None:
    """The fourth end without a result counts; without the first one, it was the third."""
    register(policy=policy)
    sizes: list[int] = []
    for number in range(1, 20):
        if sizes.count(32) == 4:
            break
        sizes.append(optimizer.start_trial("job")[1].batch_size)
        if sizes[-1] != 32:
            optimizer.report("job", number, report(1, metric=1.0))
        else:
            optimizer.end_trial("job", number, "errored")
    assert sizes.count(32) == 4
    assert sizes_with_counted_ends() == {32}
    optimizer.report("job", 1, report(1))
    assert maintenance.rebuild("job")
    assert sizes_with_counted_ends() == set()


def sizes_with_counted_ends() -> set[int]:
    trials = [each for each in optimizer.list_trials("job") if each.ended_seq is not None]
    trials.sort(key=lambda each: each.ended_seq or 0)
    return count_ends((each.batch_size, each.outcome) for each in trials)[1]
