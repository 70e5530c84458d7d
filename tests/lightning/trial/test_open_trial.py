"""The trial that a loop has open, where `Recurrence` shows it; `Fit`'s is in `test_bso_*`."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
from programs import StepMeter, new_job, outcomes
from service_process import ServiceProcess
from waiting import wait_until

from zeus_lightning import Recurrence
from zeus_lightning.client import BSOClient


def recurrence(service: ServiceProcess, job_id: str) -> Recurrence:
    return Recurrence(
        service.url,
        job_id=job_id,
        target_metric=0.9,
        batch_sizes=[8, 16],
        default_batch_size=16,
        max_epochs=4,
        meter=StepMeter(),
    )


def test_ctrl_c_while_the_end_is_sent_ends_the_trial_and_its_heartbeats(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_trial, calls = BSOClient.end_trial, []

    def interrupted_once(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        end_trial(*arguments)

    monkeypatch.setattr(BSOClient, "end_trial", interrupted_once)
    job = new_job()
    with pytest.raises(KeyboardInterrupt), recurrence(service, job) as run:
        run.report(0.1)
    assert run.outcome == "interrupted"
    assert outcomes(service.url, job) == ["interrupted"]
    wait_until(lambda: all(each.name != "zeus-heartbeat" for each in threading.enumerate()))


def test_a_trial_whose_end_the_service_does_not_hear_is_lost_with_a_warning(
    own_service: ServiceProcess,
) -> None:
    with warnings.catch_warnings(record=True) as seen, recurrence(own_service, new_job()) as run:
        warnings.simplefilter("always")
        assert run.report(0.1).stop is False
        own_service.kill()
    assert run.outcome == "lost"
    assert any("ended as lost" in str(each.message) for each in seen)


def test_a_target_that_is_reached_ends_the_loop_while_the_service_is_away(
    own_service: ServiceProcess,
) -> None:
    with recurrence(own_service, new_job()) as run:
        own_service.kill()
        assert run.report(0.1).stop is False
        reply = run.report(0.95)
        assert (reply.stop, reply.outcome) == (True, None)
    assert run.outcome == "lost"
