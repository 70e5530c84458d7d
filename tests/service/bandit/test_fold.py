"""The stored state is the fold of the event log."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.jobs import register, spec_json
from sqlalchemy import select, update
from zeus_service import maintenance, optimizer
from zeus_service.bandit import fold as history
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import checkpoints, jobs
from zeus_service.db.tables import EVENTS, JOBS, TRIALS
from zeus_service.db.transactions import transaction
from zeus_service.errors import ExhaustedJob, TrialFinished
from zeus_service.messages import Report, TrialEnd

job_ids = (f"job-{number}" for number in itertools.count())

moves = st.lists(
    st.tuples(
        st.sampled_from(["start", "report", "report", "end", "expire"]),
        st.integers(0, 5),  # which trial
        st.floats(0, 1e9),  # what it cost
        st.floats(0, 1),  # how far it came
        st.sampled_from(["diverged", "out_of_memory", "interrupted", "errored", "withdrawn"]),
    ),
    max_size=40,
)


def stored(job_id: str) -> tuple[JobSpec, Any, list[history.Event]]:
    """A job's specification, state and events as the database has them."""
    with transaction(read_only=True) as connection:
        job = jobs.get(connection, job_id)
        numbers = connection.execute(
            select(EVENTS.c.sequence).where(EVENTS.c.job_id == job_id).order_by(EVENTS.c.sequence)
        ).scalars()
        assert list(numbers) == list(range(1, job.events + 1))
        events = checkpoints.events_after(connection, job_id, 0, limit=10_000)
        return job.spec, job.state, [stored.event for stored in events]


def play(job_id: str, moves: list[Any]) -> None:
    """Carry moves out through the use cases; some of them are refused, as they would be."""
    started, sequence = 0, itertools.count(1)
    for move, which, cost, metric, outcome in moves:
        number = 1 + which % max(started, 1)
        try:
            if move == "start" or not started:
                started = optimizer.start_trial(job_id, None)[0].trial_number
            elif move == "report":
                optimizer.report(
                    job_id,
                    number,
                    Report(
                        sequence=next(sequence), epoch=1, time_s=1, energy_j=cost, metric=metric
                    ),
                )
            elif move == "end":
                optimizer.end_trial(job_id, number, TrialEnd(outcome=outcome))
            else:
                with transaction() as connection:
                    connection.execute(
                        update(TRIALS)
                        .where(TRIALS.c.job_id == job_id, TRIALS.c.trial_number == number)
                        .values(lease_expires_at=0)
                    )
        except (TrialFinished, ExhaustedJob):
            continue


@given(
    moves=moves,
    policy=st.sampled_from(sorted(POLICIES)),
    window=st.sampled_from([0, 3]),
    early_stop=st.sampled_from(["expected", "spent"]),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_folding_the_event_log_gives_the_stored_state(
    app: Flask, moves: list[Any], policy: str, window: int, early_stop: str
) -> None:
    job_id = next(job_ids)
    changes = {"policy": policy, "window_size": window, "early_stop": early_stop}
    given = spec_json(job_id=job_id, target_metric=0.5, **changes)
    optimizer.register_job(JobSpec.model_validate(given))
    play(job_id, moves)
    spec, state, events = stored(job_id)
    assert history.fold(spec, events) == state
    assert maintenance.rebuild(job_id)


@pytest.mark.parametrize("name", POLICIES)
def test_every_choice_can_be_replayed_from_the_seed_and_the_trial_number(
    app: Flask, name: str
) -> None:
    register(seed=7, policy=name)
    for number in range(1, 30):
        optimizer.start_trial("job", None)
        figures = {"epoch": 1, "time_s": 1.0, "metric": 1.0}
        energy = float(np.random.default_rng(number).normal(1000, 200))
        optimizer.report("job", number, Report(sequence=1, energy_j=energy, **figures))
    resolved, _, events = stored("job")
    policy = POLICIES[name]
    for position, event in enumerate(events):
        if event.kind == "started":
            rng = np.random.default_rng([7, event.trial_number])
            state = history.fold(resolved, events[:position])
            assert policy.next_batch_size(resolved, state, rng) == event.choice


def test_rebuilding_repairs_a_state_that_was_damaged(app: Flask) -> None:
    register()
    play("job", [("start", 0, 0.0, 0.0, ""), ("report", 0, 10.0, 1.0, "")])
    _, right, _ = stored("job")
    with transaction() as connection:
        connection.execute(update(JOBS).values(state={**right, "round": 9}))
    assert not maintenance.rebuild("job")
    assert stored("job")[1] == right
