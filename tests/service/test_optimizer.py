"""A report is decided on once, and stored on the trial that it was decided on."""

from __future__ import annotations

from typing import Any

import pytest
from databases import POSTGRESQL
from flask import Flask
from service.conftest import application
from service.db.races import just_before, on_servers
from service.jobs import LEARNING, let_leases_expire, register, spec_json
from sqlalchemy import select
from zeus_service import counters, maintenance, messages, optimizer
from zeus_service.bandit import stopping
from zeus_service.bandit.policy import Choice
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.db.tables import EVENTS
from zeus_service.db.transactions import transaction
from zeus_service.errors import ExhaustedJob, ReportConflict


def start(**changes: Any) -> messages.TrialStart:
    register(**changes)
    return optimizer.start_trial("job", None)[0]


def report(sequence: int, metric: float = 0.1) -> messages.Decision:
    figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 10.0 * sequence, "metric": metric}
    return optimizer.report("job", 1, messages.Report(sequence=sequence, **figures))


def counted() -> tuple[float, float]:
    """Trials that converged, and joules reported, so far in this process."""
    converged = counters.REGISTRY.get_sample_value(
        "zeus_bso_trials_ended_total", {"outcome": "converged"}
    )
    return converged or 0.0, counters.REGISTRY.get_sample_value("zeus_bso_energy_joules_total")


def test_each_report_is_decided_on_once(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = []

    def decide(*args: Any, **kwargs: Any) -> messages.Decision:
        decisions.append(stopping_decide(*args, **kwargs))
        return decisions[-1]

    stopping_decide = stopping.decide
    monkeypatch.setattr(stopping, "decide", decide)
    start()
    goes_on = report(1)
    optimizer.end_trial("job", 1, messages.TrialEnd(outcome="interrupted"))
    revives = report(2)
    ends = report(3, metric=1.0)
    assert [goes_on, revives, ends] == decisions
    assert report(3, metric=1.0) == ends
    assert len(decisions) == 3
    assert [each.outcome for each in decisions] == [None, None, "converged"]


def test_a_report_from_before_a_change_of_gpus_gets_the_same_answer_again(app: Flask) -> None:
    start()
    first, second = (
        messages.Report(
            sequence=sequence, epoch=1, time_s=1.0, energy_j=1.0, metric=0.1, power_limit_w=200.0
        ).model_copy(update={"default_power_limit_w": default_w})
        for sequence, default_w in ((1, 300.0), (2, 400.0))
    )
    decisions = [optimizer.report("job", 1, each) for each in (first, second)]
    assert [optimizer.report("job", 1, each) for each in (first, second)] == decisions
    for other in ({"power_limit_w": 250.0}, {"energy_j": 2.0}):
        with pytest.raises(ReportConflict):
            optimizer.report("job", 1, second.model_copy(update=other))


@pytest.mark.parametrize("database_url", POSTGRESQL, indirect=True)  # MySQL locks the trial, too
def test_a_last_report_that_another_one_overtakes_is_counted_once(app: Flask) -> None:
    counters.energy_j.reset()  # other tests report joules beside which 20 more are lost
    start()
    trials, joules = counted()
    with just_before("UPDATE trials", lambda: report(1)):
        assert report(2, metric=1.0).outcome == "converged"
    assert counted() == (trials + 1, joules + 20)


@on_servers
def test_a_last_report_never_ends_another_job_of_the_same_id_with_its_batch_size(
    app: Flask, database_url: str
) -> None:
    def replace_the_job() -> None:
        with application(database_url):  # another server: in this one it would wait its turn
            maintenance.delete_job("job", force=True)
            assert start(batch_sizes=[7], default_batch_size=7).batch_size == 7

    assert start().batch_size == 32
    with just_before(" UPDATE", replace_the_job):  # FOR UPDATE, FOR NO KEY UPDATE
        report(1, metric=1.0)
    with transaction(read_only=True) as connection:
        events = connection.execute(select(EVENTS.c["kind", "batch_size"]))
        assert sorted(tuple(event) for event in events) == [("ended", 7), ("started", 7)]
    assert maintenance.rebuild("job")


@pytest.mark.parametrize("policy", LEARNING)
def test_a_job_is_not_exhausted_while_a_running_trial_may_converge(
    app: Flask, database_url: str, policy: str
) -> None:
    def start() -> tuple[int, str]:
        try:
            foretold = optimizer.next_choice("job")[0]
        except ExhaustedJob:
            foretold = None
        trial = optimizer.start_trial("job", None)[0]
        assert foretold == Choice(trial.batch_size, trial.why)
        return trial.batch_size, trial.why

    def end(trial_number: int) -> None:
        end = messages.TrialEnd(outcome="not_converged")
        optimizer.end_trial("job", trial_number, end)

    job = spec_json(batch_sizes=[32], policy=policy)
    optimizer.register_job(JobSpec.model_validate(job))
    assert [start() for _ in range(3)] == [(32, "explore"), (32, "concurrent"), (32, "concurrent")]
    end(1)
    end(2)
    assert start() == (32, "fallback")
    assert start() == (32, "fallback")
    let_leases_expire(database_url)  # the next start would mark them all as lost
    with pytest.raises(ExhaustedJob):
        optimizer.next_choice("job")
    end(3)
    for number in (4, 5):  # they end one after another, and allow no others
        with pytest.raises(ExhaustedJob):
            start()
        end(number)
    with pytest.raises(ExhaustedJob):
        start()
    assert maintenance.rebuild("job")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_is_exhausted_when_its_last_running_trial_is_lost(
    app: Flask, database_url: str, policy: str
) -> None:
    start(batch_sizes=[32], policy=policy)
    optimizer.start_trial("job", None)
    optimizer.start_trial("job", None)
    for number in (1, 2):
        optimizer.end_trial("job", number, messages.TrialEnd(outcome="not_converged"))
    let_leases_expire(database_url)
    with pytest.raises(ExhaustedJob):
        optimizer.start_trial("job", None)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_that_converges_saves_a_job_that_has_nothing_left(app: Flask, policy: str) -> None:
    start(batch_sizes=[32], policy=policy)
    for number in (2, 3):
        optimizer.start_trial("job", None)
        optimizer.end_trial("job", number, messages.TrialEnd(outcome="not_converged"))
    optimizer.start_trial("job", None)
    report(1, metric=1.0)
    assert optimizer.get_job("job").stage != "exhausted"
    assert optimizer.start_trial("job", None)[0].batch_size == 32


@pytest.mark.parametrize("policy", ["zeus", "information_directed"])
def test_a_batch_size_that_is_passed_over_is_named_with_the_reason_of_the_next_start(
    app: Flask, policy: str
) -> None:
    for number in range(1, 4):
        assert start(policy=policy).batch_size == 32
        optimizer.end_trial("job", number, messages.TrialEnd(outcome="errored"))
    fourth = start(policy=policy)
    assert fourth.batch_size == 16
    assert "without a result with each of 32 (errored)" in fourth.reason
    arms = {arm.batch_size: arm.status for arm in optimizer.get_job("job").arms}
    assert arms == {8: "alive", 16: "alive", 32: "errored", 64: "alive", 128: "alive"}
    report(1)  # the first trial is resumed
    assert "32" not in start(policy=policy).reason
    assert maintenance.rebuild("job")
