"""What is recorded of a trial, the texts and figures made from it, and when it can be resumed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from records import hardware, job_spec, record, report

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import TrialStatus
from zeus_lightning.meters import Reading
from zeus_lightning.run.record import TrialRecord


def test_the_cost_weighs_energy_and_the_time_at_the_highest_power() -> None:
    job = job_spec(eta_knob=0.25)
    last = report(time_s=3.0, energy_j=40.0)
    assert record(job=job, report=last).cost_j == 0.25 * 40 + 0.75 * 100 * 3
    assert record(job=job).cost_j is None


@pytest.mark.parametrize(
    ("higher_is_better", "metric", "reached"),
    [
        (True, 0.9, True),
        (True, 0.89, False),
        (False, 0.9, True),
        (False, 0.91, False),
        (True, math.nan, False),
    ],
)
def test_the_target_is_reached_from_the_jobs_side(
    higher_is_better: bool, metric: float, reached: bool
) -> None:
    job = job_spec(target_metric=0.9, higher_is_better=higher_is_better)
    assert record(job=job, report=report(metric=metric)).target_reached is reached
    assert not record(job=job).target_reached


def test_nothing_is_logged_before_the_first_report() -> None:
    assert record().metrics() == {}
    assert record(report=report(2)).metrics()["zeus/power_w"] == 2.0


def test_the_summary_names_the_trial_its_figures_and_how_they_were_measured() -> None:
    ended = record(
        hardware=hardware(estimated=True),
        profiled=True,
        outcome="converged",
        reason="done.",
        report=report(3),
    )
    assert ended.summary() == (
        "trial 1 of job 'job' with batch size 8 ended as converged: done (val_acc 0.5 after 3 "
        "epochs, 3.0 s, 6.0 J (estimated), cost 153.0 J, including power-limit measurements)"
    )


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [
        ("not_converged", "it will try another batch size."),
        ("early_stopped", "with policy={'window_size': ...} or beta_knob=float('inf')."),
        ("out_of_memory", "The service may stop offering this and larger batch sizes."),
    ],
)
def test_a_failure_ends_with_what_to_do_next(outcome: str, advice: str) -> None:
    assert record(outcome=outcome, reason="why").failure().endswith(advice)


SAVED = record(
    report=report(2),
    outcome="errored",
    reason="mine",
    profiled=True,
    spent=Reading(6.5, 3.25),
    unsent=[report(3), report(4)],
)


def test_a_record_survives_json_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    for one in (record(), SAVED):
        assert TrialRecord.from_json(json.loads(json.dumps(one.to_json()))) == one
        one.write(path)
        assert TrialRecord.read(path) == one
        assert json.loads(path.read_text())["cost_j"] == one.cost_j
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("{")
    assert TrialRecord.read(path) is None
    TrialRecord.remove(path)
    assert path.exists()  # it is something else
    SAVED.write(path)
    TrialRecord.remove(path)
    assert not path.exists()


def test_a_device_is_not_replaced_by_a_record(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with pytest.warns(UserWarning, match="it is not a regular file"):
        SAVED.write(link)
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)


def status(**fields: Any) -> TrialStatus:
    defaults = {
        "trial_number": 1,
        "generation": "of-a-test",
        "batch_size": 8,
        "outcome": None,
        "reason": "",
        "reports": 2,
    }
    return TrialStatus(**(defaults | fields))


@pytest.mark.parametrize("outcome", [None, "interrupted", "errored", "lost"])
def test_a_trial_without_a_verdict_can_be_resumed(outcome: str | None) -> None:
    SAVED.check_resumable(job_spec(), hardware(), status(outcome=outcome))


@pytest.mark.parametrize(
    ("job_id", "known", "message"),
    [
        ("other", status(), "belongs to trial 1 of job 'job', but this run's job is 'other'"),
        ("job", None, "which the service does not know"),
        ("job", status(batch_size=16), "which the service does not know"),
        ("job", status(generation="other"), "of a job that was deleted"),
        ("job", status(outcome="converged", reason="so."), r"has ended as converged \(so\)"),
        ("job", status(outcome="withdrawn"), "has ended as withdrawn"),
    ],
)
def test_a_trial_that_cannot_be_resumed_is_an_error_with_advice(
    job_id: str, known: TrialStatus | None, message: str
) -> None:
    with pytest.raises(ZeusConfigError, match=f"{message}.*without ckpt_path"):
        SAVED.check_resumable(job_spec(job_id=job_id), hardware(), known)


def test_a_trial_is_not_resumed_on_other_hardware() -> None:
    other = hardware(num_devices=2)
    with pytest.raises(ZeusConfigError, match=r"which ran on 1 x test .*this run is on 2 x test"):
        SAVED.check_resumable(job_spec(), other, status())


@pytest.mark.parametrize(("received", "unsent"), [(2, [3, 4]), (3, [4]), (7, [])])
def test_a_reopened_trial_sends_what_the_service_has_not_received(
    received: int, unsent: list[int]
) -> None:
    job = job_spec(max_epochs=11)
    reopened = SAVED.reopened(job, received)
    assert [each.sequence for each in reopened.unsent] == unsent
    assert (reopened.job, reopened.outcome) == (job, None)
    assert SAVED.outcome == "errored"
