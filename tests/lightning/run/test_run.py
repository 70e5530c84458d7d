"""A run reports in order, once, and the service never stops a healthy one; also `test_bso_*`."""

from __future__ import annotations

import logging
import threading
import warnings
from functools import partial
from typing import Any

import programs
import pytest
import requests
from programs import new_job, outcomes
from proxy import Body, Proxy, Request
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

from zeus_lightning.client import BSOClient
from zeus_lightning.messages import Decision

recurrence = partial(programs.recurrence, max_epochs=10, raise_on_failure=False)


def test_each_time_that_the_service_goes_away_and_comes_back_is_one_warning(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder
) -> None:
    answers: list[Decision] = []
    job = new_job()

    def away(request: Request) -> tuple[int, Body] | None:
        is_away = request.kind == "report" and len(answers) in (0, 1, 4, 5)
        return (500, {"code": "internal"}) if is_away else None

    warnings.simplefilter("always")
    with Proxy(service.url, instead=away) as proxy, recurrence(proxy.url, job) as run:
        while len(answers) < 8:
            answers.append(run.report(0.1))
        assert not any(each.stop for each in answers)
        assert run.report(0.95).outcome == "converged"
    sent = [request.body["sequence"] for request in proxy.seen if request.kind == "report"]
    assert sent == [1, 1, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9]
    texts = [str(each.message) for each in recwarn]
    kinds = ["later" if "sent later" in text else text[-22:] for text in texts if "sen" in text]
    assert kinds == ["later", "the queued reports (3)", "later", "the queued reports (3)"]
    assert outcomes(service.url, job) == ["converged"]


@pytest.mark.parametrize("meter", ["auto", "cpu-estimate"])
def test_what_is_left_out_names_no_other_meter_where_one_was_chosen(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture, meter: str
) -> None:
    caplog.set_level(logging.INFO)
    with recurrence(service.url, new_job(), meter=meter) as run:
        run.report(0.95)
    (line,) = (text for text in caplog.messages if text.startswith("zeus: estimating the energy"))
    assert "with cpu-estimate; not included: GPUs, memory, idle power" in line
    assert ("see `zeus-lightning doctor`" in line) == (meter == "auto")


def test_a_run_of_a_deleted_job_goes_on_and_changes_nothing_of_the_new_one(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with recurrence(service.url, job) as old:
        url = f"{service.url}/api/v1/jobs/{job}?force=true"
        assert requests.delete(url, timeout=LIMIT_S).status_code == 204
        with recurrence(service.url, job) as new:
            with pytest.warns(UserWarning, match="continues without reports.*the job was deleted"):
                assert old.report(0.5).outcome == "errored"
            assert new.trial is not None
            status = BSOClient(service.url).trial_status(job, new.trial.trial_number)
            assert status is not None
            assert (status.outcome, status.reports) == (None, 0)
            new.report(0.95)


def test_a_run_of_a_deleted_job_warns_once(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder
) -> None:
    job = new_job()
    with recurrence(service.url, job) as run:
        url = f"{service.url}/api/v1/jobs/{job}?force=true"
        assert requests.delete(url, timeout=LIMIT_S).status_code == 204
        assert run.report(0.5).outcome == "errored"
    (text,) = [str(each.message) for each in recwarn if "zeus: " in str(each.message)]
    assert text.startswith("zeus: training continues without reports: ")


def test_an_end_that_the_service_refuses_is_lost_with_the_services_reason(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder
) -> None:
    with recurrence(service.url, new_job()) as run:
        run.report(0.1)
        assert run.trial is not None
        BSOClient(service.url).end_trial(run.trial, "diverged", "someone else ended it")
    assert run.outcome == "lost"
    (text,) = [str(each.message) for each in recwarn if "not be reported" in str(each.message)]
    assert "has ended: diverged" in text


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
    with pytest.raises(KeyboardInterrupt), recurrence(service.url, job) as run:
        run.report(0.1)
    assert run.outcome == "interrupted"
    assert outcomes(service.url, job) == ["interrupted"]
    wait_until(lambda: all(each.name != "zeus-heartbeat" for each in threading.enumerate()))
