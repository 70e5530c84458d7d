"""What is stored of each job for lists."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from service.jobs import LEARNING, register, spec
from sqlalchemy import select
from zeus_service import maintenance, optimizer
from zeus_service.bandit import fold as history
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import Choice
from zeus_service.bandit.registry import policy_of
from zeus_service.db.standing import COLUMNS, Standing
from zeus_service.db.tables import JOBS
from zeus_service.db.transactions import transaction
from zeus_service.messages import Report, TrialEnd


def event(kind: str, outcome: Outcome | None = None, why: str = "explore") -> history.Event:
    return history.Event(kind, 1, Choice(32, why), outcome, 1.0)  # type: ignore[arg-type]


def after(*events: history.Event) -> Standing:
    job = spec()
    return Standing().after(job, history.fold(job, []), events)


def test_failures_in_a_row_end_with_a_run_that_converges() -> None:
    lost, stopped = event("ended", "lost"), event("ended", "early_stopped")
    assert after(lost, stopped).failures == 2
    assert after(lost, event("ended", "withdrawn")).failures == 1
    assert after(lost, stopped, event("ended", "converged")).failures == 0
    assert after(lost, stopped, event("revived")).failures == 1
    assert after(event("revived")).failures == 0


def test_choices_for_the_best_in_a_row_end_with_an_exploration() -> None:
    exploit, explore = event("started", why="exploit"), event("started", why="explore")
    assert after(exploit, exploit).exploits == 2
    assert after(exploit, event("started", why="concurrent"), exploit).exploits == 2
    assert after(exploit, explore).exploits == 0


@pytest.mark.parametrize("policy", sorted(LEARNING))
def test_what_is_stored_is_what_the_policy_says(app: Flask, policy: str) -> None:
    register(policy=policy)

    def check() -> None:
        job = optimizer.get_job("job")
        assert stored()["stage"] == job.stage
        assert stored()["best_batch_size"] == job.best_batch_size

    check()
    for number in range(1, 8):
        optimizer.start_trial("job", None)
        check()
        if number % 3:
            report = Report(sequence=1, epoch=1, time_s=1.0, energy_j=9.0 * number, metric=1.0)
            optimizer.report("job", number, report)
        else:
            optimizer.end_trial("job", number, TrialEnd(outcome="diverged"))
        check()
    assert stored()["best_batch_size"] is not None
    before = stored()
    maintenance.rebuild("job")
    assert stored() == before


def test_a_job_whose_batch_sizes_have_all_failed_is_stored_as_exhausted(app: Flask) -> None:
    register(batch_sizes=[32])
    for number in range(1, 3):
        optimizer.start_trial("job", None)
        optimizer.end_trial("job", number, TrialEnd(outcome="diverged"))
    assert stored()["stage"] == "exhausted"
    assert stored()["failures"] == 2
    assert policy_of(optimizer.get_job("job").spec).name in LEARNING


def stored() -> dict[str, Any]:
    with transaction(read_only=True) as connection:
        row = connection.execute(select(*JOBS.c[COLUMNS])).mappings().one()
        return dict(row)
