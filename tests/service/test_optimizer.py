"""What starts, reports and ends of trials do, and what they leave behind."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.db.races import just_before, on_servers
from service.jobs import HARDWARE, LEARNING, let_leases_expire, register
from service.jobs import report as report_of
from zeus_service import maintenance, optimizer
from zeus_service.api import messages
from zeus_service.bandit import stopping
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.bandit.registry import POLICIES, policy_of
from zeus_service.db import jobs, queries
from zeus_service.db.tables import MAX_REASON, Trial
from zeus_service.errors import ExhaustedJob, KeyConflict, NotFound, ReportConflict


def start(**changes: Any) -> Trial:
    register(**changes)
    return optimizer.start_trial("job")[1]


def report(sequence: int, metric: float = 0.1) -> stopping.Decision:
    figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 10.0 * sequence, "metric": metric}
    return optimizer.report("job", 1, stopping.Report(sequence=sequence, **figures))


def estimates() -> list[ArmEstimate]:
    job = optimizer.get_job("job")
    spec = jobs.specification(job)
    return policy_of(spec).describe(spec, job.state, HARDWARE)


@on_sqlite
def test_a_report_from_before_a_change_of_gpus_gets_the_same_answer_again(app: Flask) -> None:
    start()
    first, second = (
        report_of(sequence, power_limit_w=200.0, default_power_limit_w=default_w)
        for sequence, default_w in ((1, 300.0), (2, 400.0))
    )
    decisions = [optimizer.report("job", 1, each) for each in (first, second)]
    assert [optimizer.report("job", 1, each) for each in (first, second)] == decisions
    for other in ({"power_limit_w": 250.0}, {"energy_j": 3.0}):
        with pytest.raises(ReportConflict):
            optimizer.report("job", 1, second.model_copy(update=other))


@on_sqlite
@pytest.mark.parametrize(("load", "is_busy"), [(0.9, True), (0.7, False), (None, False)])
def test_a_run_stopped_early_on_a_busier_host_has_the_loads_in_its_reason(
    app: Flask, load: float | None, is_busy: bool
) -> None:
    register(policy="zeus")
    for number, other in enumerate((0.2, 0.6, None), start=1):
        optimizer.start_trial("job")
        optimizer.report("job", number, report_of(1, metric=0.95, host_load=other))
    optimizer.start_trial("job")
    assert optimizer.report("job", 4, report_of(1, host_load=load)).outcome is None
    last = report_of(2, energy_j=1e6, host_load=load)
    decision = optimizer.report("job", 4, last)
    assert decision.outcome == "early_stopped"
    loads = "; host load 0.9, usual 0.4"
    assert decision.reason.endswith(loads) is is_busy
    assert ("load" in decision.reason) is is_busy
    assert queries.get_trial("job", 4)[0].reason == decision.reason
    assert optimizer.report("job", 4, last) == decision  # the same report again


@on_sqlite
@pytest.mark.parametrize("policy", LEARNING)
def test_a_job_is_not_exhausted_while_a_running_trial_may_converge(
    app: Flask, database_url: str, policy: str
) -> None:
    def start() -> tuple[int, str]:
        foretold = optimizer.describe_job("job")[2]
        trial = optimizer.start_trial("job")[1]
        assert foretold == (trial.batch_size, trial.start_reason)
        return trial.batch_size, trial.why

    def end(trial_number: int) -> None:
        optimizer.end_trial("job", trial_number, "not_converged")

    register(batch_sizes=[32], policy=policy)
    assert [start() for _ in range(3)] == [(32, "explore"), (32, "concurrent"), (32, "concurrent")]
    end(1)
    end(2)
    assert start() == (32, "fallback")
    assert start() == (32, "fallback")
    let_leases_expire(database_url)  # the next start would mark them all as lost
    size, why = optimizer.describe_job("job")[2] or (0, "")
    assert size is None
    assert "no batch size left to try: 1 missed the target." in why
    end(3)
    for number in (4, 5):  # they end one after another, and allow no others
        with pytest.raises(ExhaustedJob):
            start()
        end(number)
    with pytest.raises(ExhaustedJob):
        start()
    assert maintenance.rebuild("job")


@on_sqlite
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_is_exhausted_when_its_last_running_trial_is_lost_and_keeps_that_it_was(
    app: Flask, database_url: str, policy: str
) -> None:
    start(batch_sizes=[32], policy=policy)
    optimizer.start_trial("job")
    optimizer.start_trial("job")
    for number in (1, 2):
        optimizer.end_trial("job", number, "not_converged")
    let_leases_expire(database_url)
    with pytest.raises(ExhaustedJob):
        optimizer.start_trial("job")
    ended = [trial.outcome for trial in optimizer.list_trials("job")]
    assert ended == ["not_converged", "not_converged", "lost"]
    maintenance.check_deletable("job")


@on_sqlite
@pytest.mark.parametrize("policy", POLICIES)
def test_a_trial_that_converges_saves_a_job_that_has_nothing_left(app: Flask, policy: str) -> None:
    start(batch_sizes=[32], policy=policy)
    for number in (2, 3):
        optimizer.start_trial("job")
        optimizer.end_trial("job", number, "not_converged")
    optimizer.start_trial("job")
    report(1, metric=1.0)
    assert not optimizer.get_job("job").exhausted
    assert optimizer.start_trial("job")[1].batch_size == 32


@on_sqlite
@pytest.mark.parametrize("policy", ["zeus", "information_directed"])
def test_a_batch_size_that_is_passed_over_is_named_with_the_reason_of_the_next_start(
    app: Flask, policy: str
) -> None:
    for number in range(1, 4):
        assert start(policy=policy).batch_size == 32
        optimizer.end_trial("job", number, "errored")
    fourth = start(policy=policy)
    assert fourth.batch_size == {"zeus": 16, "information_directed": 64}[policy]
    assert "32 skipped: no result" in fourth.start_reason
    described = messages.Job.with_estimates(*optimizer.describe_job("job"))
    arms = {arm.batch_size: arm.status for arm in described.hardware[0].arms}
    assert arms == {8: "alive", 16: "alive", 32: "errored", 64: "alive", 128: "alive"}
    report(1)  # the first trial is resumed
    assert "32" not in start(policy=policy).start_reason
    assert maintenance.rebuild("job")


@on_servers
def test_a_job_that_is_deleted_while_it_is_described_is_unknown(app: Flask) -> None:
    register()
    with (
        just_before("SELECT CASE", lambda: maintenance.delete_job("job")),
        pytest.raises(NotFound),
    ):
        optimizer.describe_job("job")


@on_sqlite
@pytest.mark.parametrize("policy", POLICIES)
def test_a_control_trial_takes_the_default_and_is_never_stopped_early(
    app: Flask, policy: str
) -> None:
    register(policy=policy, beta_knob=0.01, max_epochs=100)
    optimizer.start_trial("job")
    report(1, metric=1.0)
    _, trial, new = optimizer.start_trial("job", "key", control=True)
    assert new
    assert (trial.batch_size, trial.why, trial.start_cost_bound) == (32, "control", None)
    figures = {"time_s": 1e6, "energy_j": 1e9}
    for sequence, metric in ((1, 0.1), (2, 0.1), (3, 1.0)):
        given = stopping.Report(sequence=sequence, epoch=sequence, metric=metric, **figures)
        decision = optimizer.report("job", trial.trial_number, given)
    assert decision.outcome == "converged"
    assert maintenance.rebuild("job")
    for control in (True, False):
        with nullcontext() if control else pytest.raises(KeyConflict):
            assert not optimizer.start_trial("job", "key", control=control)[2]


@on_sqlite
@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_without_a_batch_size_goes_on_with_controls(app: Flask, policy: str) -> None:
    register(policy=policy, batch_sizes=[16, 32])
    with suppress(ExhaustedJob):
        for number in range(1, 100):
            optimizer.start_trial("job")
            optimizer.end_trial("job", number, "not_converged")
    with pytest.raises(ExhaustedJob):
        optimizer.start_trial("job")
    _, trial, _ = optimizer.start_trial("job", control=True)
    last = optimizer.report("job", trial.trial_number, report_of(1, metric=1.0))
    assert last.outcome == "converged"
    assert optimizer.start_trial("job")[1].why in ("explore", "exploit")
    assert maintenance.rebuild("job")


@on_sqlite
def test_a_control_trial_does_not_fill_the_round_of_zeus(app: Flask) -> None:
    register(policy="zeus")
    _, control, _ = optimizer.start_trial("job", control=True)
    optimizer.report("job", control.trial_number, report_of(1, metric=1.0))
    _, first, _ = optimizer.start_trial("job")
    assert (first.batch_size, first.why) == (32, "explore")
    assert optimizer.get_job("job").best_batch_size == 32


def test_reasons_of_starts_fit_their_column_however_many_batch_sizes_are_passed_over(
    app: Flask,
) -> None:
    """PostgreSQL and MariaDB refuse a text that is too long."""
    sizes = [10**9 + n for n in range(48)]
    register(batch_sizes=sizes, default_batch_size=sizes[0], max_epochs=2**31 - 1)
    for number in range(1, 3 * len(sizes) + 3):
        assert len(optimizer.start_trial("job")[1].start_reason) <= MAX_REASON
        optimizer.end_trial("job", number, "interrupted")


def test_a_start_marks_some_lost_trials_at_a_time(
    app: Flask, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a start after many that were lost is as fast as any."""
    monkeypatch.setattr(jobs, "MAX_LOST_AT_ONCE", 3)
    register()
    for _ in range(7):
        optimizer.start_trial("job")
    let_leases_expire(database_url)
    lost = []
    for _ in range(3):
        optimizer.start_trial("job")
        lost.append([each.outcome for each in optimizer.list_trials("job")].count("lost"))
    assert lost == [3, 6, 7]
    assert maintenance.rebuild("job")


@on_sqlite
def test_a_revival_leaves_failures_in_a_row_as_if_its_end_had_not_been(app: Flask) -> None:
    register(beta_knob=None)
    for outcome in ("errored", "converged", "errored"):
        number = optimizer.start_trial("job")[1].trial_number
        if outcome == "converged":
            optimizer.report("job", number, report_of(1, metric=1.0))
        else:
            optimizer.end_trial("job", number, "errored")
    report(1)  # the first one is resumed
    assert optimizer.get_job("job").failures == 1
