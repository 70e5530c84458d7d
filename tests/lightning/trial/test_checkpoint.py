"""What a checkpoint holds of a trial, and when it can be resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from records import hardware, job_spec, record, report

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import TrialStatus
from zeus_lightning.meters import Reading
from zeus_lightning.trial.checkpoint import SavedTrial

SAVED = SavedTrial(
    record(report=report(2), outcome="errored", reason="mine"),
    Reading(6.5, 3.25),
    (report(3), report(4)),
)


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


def test_a_saved_trial_survives_json() -> None:
    assert SavedTrial.from_json(json.loads(json.dumps(SAVED.to_json()))) == SAVED


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
    reporter = SAVED.reopen(BSOClient("http://127.0.0.1:1"), job, received)
    assert [each.sequence for each in reporter.unsent] == unsent
    assert (reporter.record.job, reporter.record.outcome) == (job, None)
    assert SAVED.record.outcome == "errored"
