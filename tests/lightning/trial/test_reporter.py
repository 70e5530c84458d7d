"""Reports reach the service in order, once, and never stop a healthy run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import requests
from calls import assert_one_call_of_a_second, recorded_calls
from programs import new_job, outcomes, trials
from proxy import Body, Proxy, Request
from records import hardware, job_spec, record
from service_process import ServiceProcess
from waiting import LIMIT_S

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError
from zeus_lightning.messages import JobSpec
from zeus_lightning.meters import Reading
from zeus_lightning.trial.reporter import TrialReporter, start_trial

SPENT = Reading(energy_j=2.0, time_s=1.0)


def started(url: str, job: JobSpec) -> TrialReporter:
    """The reporter of a trial that has just been started."""
    client = BSOClient(url)
    return TrialReporter(client, start_trial(client, job, hardware(), 1))


@pytest.fixture
def job() -> JobSpec:
    return job_spec(job_id=new_job())


class Away:
    """Answers reports with an error while it is set."""

    def __init__(self) -> None:
        self.answer: tuple[int, Body] | None = None

    def __call__(self, request: Request) -> tuple[int, Body] | None:
        return self.answer if request.kind == "report" else None


def test_reports_wait_for_a_service_that_is_away_and_are_sent_in_order(
    service: ServiceProcess, job: JobSpec
) -> None:
    away = Away()
    with Proxy(service.url, instead=away) as proxy:
        reporter = started(proxy.url, job)
        away.answer = (500, {"code": "internal"})
        with pytest.warns(UserWarning, match="training continues, and reports are sent later"):
            first = reporter.report(1, SPENT, 0.1)
        assert (first.report.sequence, first.outcome) == (1, None)
        assert [each.sequence for each in reporter.unsent] == [1]
        away.answer = None
        with pytest.warns(UserWarning, match=rf"{proxy.url} answers again; .* are sent \(2\)"):
            assert reporter.report(2, SPENT, 0.95).outcome == "converged"
        assert not reporter.unsent
    sent = [request.body["sequence"] for request in proxy.seen if request.kind == "report"]
    assert sent == [1, 1, 2]
    assert outcomes(service.url, job.job_id) == ["converged"]


def test_each_time_that_the_service_goes_away_and_comes_back_is_one_warning(
    service: ServiceProcess, job: JobSpec, recwarn: pytest.WarningsRecorder
) -> None:
    away = Away()
    warnings.simplefilter("always")
    with Proxy(service.url, instead=away) as proxy:
        reporter = started(proxy.url, job)
        for epoch in range(1, 9):
            away.answer = (500, {"code": "internal"}) if epoch in (1, 2, 5, 6) else None
            reporter.report(epoch, SPENT, 0.1)
    texts = [str(each.message) for each in recwarn]
    kinds = ["later" if "sent later" in text else text[-3:] for text in texts if "sent" in text]
    assert kinds == ["later", "(3)", "later", "(3)"]


def test_a_refused_report_ends_the_trial_without_a_verdict(
    service: ServiceProcess, job: JobSpec
) -> None:
    away = Away()
    away.answer = (409, {"code": "conflict", "detail": "no"})
    with Proxy(service.url, instead=away) as proxy:
        reporter = started(proxy.url, job)
        with pytest.warns(UserWarning, match="learn nothing from this run"):
            answer = reporter.report(1, SPENT, 0.1)
    assert answer.outcome == "errored"
    assert outcomes(service.url, job.job_id) == ["errored"]


@pytest.mark.parametrize(
    ("spent", "metric", "outcome"),
    [
        (SPENT, math.nan, "diverged"),
        (SPENT, -math.inf, "diverged"),
        (SPENT, 1e31, "diverged"),
        (Reading(math.nan, 1.0), 0.5, "errored"),
    ],
)
@pytest.mark.filterwarnings("ignore:zeus. an energy meter failed")
def test_figures_that_are_not_finite_are_never_sent(
    service: ServiceProcess, job: JobSpec, spent: Reading, metric: float, outcome: str
) -> None:
    assert started(service.url, job).report(1, spent, metric).outcome == outcome
    (trial,) = trials(service.url, job.job_id)
    assert (trial["outcome"], trial["reports"]) == (outcome, 0)


def test_the_outcome_that_another_rank_reported_first_stands(
    service: ServiceProcess, job: JobSpec
) -> None:
    client = BSOClient(service.url)
    started = start_trial(client, job, hardware(), 1)
    first, second = (TrialReporter(client, replace(started)) for _ in range(2))
    first.end_at_once("out_of_memory", "CUDA out of memory")
    second.end_at_once("errored", "connection closed by peer")
    assert first.record.outcome == second.record.outcome == "out_of_memory"
    assert second.record.reason.endswith("on this rank: connection closed by peer")


def test_ending_at_once_is_one_call_of_a_second_that_is_not_retried(
    service: ServiceProcess, job: JobSpec
) -> None:
    def unavailable(request: Request) -> tuple[int, Body] | None:
        return (503, {}) if request.kind == "end" else None

    with Proxy(service.url, instead=unavailable) as proxy, recorded_calls() as calls:
        reporter = started(proxy.url, job)
        calls.clear()
        reporter.end_at_once("errored", "mine")
    assert_one_call_of_a_second(calls.bounds_s, calls.requests)


@pytest.mark.parametrize("error", [OSError("broken"), RuntimeError("no new thread at exit")])
def test_ending_at_once_never_raises(error: Exception) -> None:
    class Broken(BSOClient):
        def end_trial(self, *args: Any, **arguments: Any) -> None:
            raise error

    reporter = TrialReporter(Broken("http://127.0.0.1:1"), record())
    reporter.end_at_once("errored", "mine")
    assert (reporter.record.outcome, reporter.record.reason) == ("errored", "mine")


def test_a_run_of_a_deleted_job_goes_on_and_changes_nothing_of_the_new_one(
    service: ServiceProcess, job: JobSpec
) -> None:
    client, old = BSOClient(service.url), started(service.url, job)
    url = f"{service.url}/api/v1/jobs/{job.job_id}?force=true"
    assert requests.delete(url, timeout=LIMIT_S).status_code == 204
    new = started(service.url, job)
    with pytest.warns(UserWarning, match="of a job that was deleted.*training continues"):
        answer = old.report(1, Reading(1.0, 1.0), 1.0)
    assert answer.outcome == "errored"
    with pytest.raises(ZeusServiceError, match="of a job that was deleted"):
        old.send_heartbeat()
    old.end_at_once("out_of_memory", "the GPU is full")
    status = client.trial_status(job.job_id, new.record.trial.trial_number)
    assert status is not None
    assert (status.outcome, status.reports) == (None, 0)


def test_an_end_that_cannot_be_reported_is_lost(service: ServiceProcess, job: JobSpec) -> None:
    def refuse(kind: str) -> Callable[[Request], tuple[int, Body] | None]:
        return lambda request: (500, {"code": "internal"}) if request.kind == kind else None

    with Proxy(service.url, instead=refuse("end")) as proxy:
        reporter = started(proxy.url, job)
        with pytest.warns(UserWarning, match="could not be reported"):
            answer = reporter.end("not_converged", "training ended")
    assert answer.outcome == "lost"
    assert answer.reason.startswith("training ended, and the service could not be reached")


def test_an_end_that_the_service_refuses_is_lost_with_the_services_reason(
    service: ServiceProcess, job: JobSpec
) -> None:
    reporter = started(service.url, job)
    BSOClient(service.url).end_trial(reporter.record.trial, "diverged", "someone else ended it")
    with pytest.warns(UserWarning, match="could not be reported"):
        answer = reporter.end("not_converged", "training ended")
    assert answer.outcome == "lost"
    assert "trial 1 of job" in answer.reason
    assert "has ended: diverged" in answer.reason
    assert "could not be reached" not in answer.reason
