"""A run reports in order, once, and the service never stops a healthy one; also `test_bso_*`."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from calls import assert_one_call_of_a_second, recorded_calls
from lightning.pytorch.strategies import SingleDeviceStrategy
from programs import StepMeter, new_job, outcomes, trials
from proxy import Body, Proxy, Request
from records import job_spec, record
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

from zeus_lightning import Recurrence
from zeus_lightning.client import BSOClient
from zeus_lightning.messages import JobSpec
from zeus_lightning.meters import Reading
from zeus_lightning.run.run import Run, end_at_once
from zeus_lightning.run.run_meter import RunMeter


def new_run(url: str, job: JobSpec) -> Run:
    """A run of one rank, before its start."""
    strategy = SingleDeviceStrategy()
    meter = RunMeter(StepMeter(), strategy)
    meter.begin()
    return Run(strategy, BSOClient(url), job, meter, share=1, require_service=True)


RUNS: list[Run] = []


@pytest.fixture(autouse=True)
def _no_heartbeat_is_left() -> Iterator[None]:
    yield
    while RUNS:
        RUNS.pop().forget()


def started(url: str, job: JobSpec) -> Run:
    run = new_run(url, job)
    run.start()
    RUNS.append(run)
    return run


def report(run: Run, epochs: int, metric: float = 0.1) -> Any:
    return run.report(epochs, lambda: metric)


@pytest.fixture
def job() -> JobSpec:
    return job_spec(job_id=new_job(), batch_sizes=[8, 16], default_batch_size=16)


class Away:
    """Answers requests of a kind with an error while it is set."""

    def __init__(self, kind: str = "report", answer: tuple[int, Body] | None = None) -> None:
        self.kind, self.answer = kind, answer

    def __call__(self, request: Request) -> tuple[int, Body] | None:
        return self.answer if request.kind == self.kind else None


def test_each_time_that_the_service_goes_away_and_comes_back_is_one_warning(
    service: ServiceProcess, job: JobSpec, recwarn: pytest.WarningsRecorder
) -> None:
    away = Away()
    warnings.simplefilter("always")
    with Proxy(service.url, instead=away) as proxy:
        run = started(proxy.url, job)
        for epoch in range(1, 9):
            away.answer = (500, {"code": "internal"}) if epoch in (1, 2, 5, 6) else None
            assert report(run, epoch).stop is False
        assert report(run, 9, 0.95).outcome == "converged"
    sent = [request.body["sequence"] for request in proxy.seen if request.kind == "report"]
    assert sent == [1, 1, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9]
    texts = [str(each.message) for each in recwarn]
    kinds = ["later" if "sent later" in text else text[-16:] for text in texts if "sen" in text]
    assert kinds == ["later", "3 queued reports", "later", "3 queued reports"]
    assert outcomes(service.url, job.job_id) == ["converged"]


@pytest.mark.filterwarnings("ignore:zeus. an energy meter failed")
@pytest.mark.parametrize(
    ("metric", "energy_j", "outcome"),
    [
        (math.nan, 1.0, "diverged"),
        (-math.inf, 1.0, "diverged"),
        (1e31, 1.0, "diverged"),
        (0.5, math.nan, "errored"),
    ],
)
def test_figures_that_are_not_finite_are_never_sent(
    service: ServiceProcess,
    job: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
    metric: float,
    energy_j: float,
    outcome: str,
) -> None:
    run = started(service.url, job)
    monkeypatch.setattr(RunMeter, "spent", lambda _: Reading(energy_j, 1.0))
    assert report(run, 1, metric).outcome == outcome
    (trial,) = trials(service.url, job.job_id)
    assert (trial["outcome"], trial["reports"]) == (outcome, 0)


@pytest.mark.filterwarnings("ignore:zeus. ")
def test_after_a_trial_is_given_up_the_target_still_ends_training(
    service: ServiceProcess, job: JobSpec
) -> None:
    with Proxy(service.url, instead=Away(answer=(409, {"code": "conflict"}))) as proxy:
        run = started(proxy.url, job)
        assert (report(run, 1).outcome, report(run, 2).stop) == ("errored", False)
        assert report(run, 3, 0.95).stop is True
        assert report(run, 4, 0.1).stop is True  # it was told to stop
        assert proxy.count("report") == 1
    assert outcomes(service.url, job.job_id) == ["errored"]


def test_the_outcome_that_another_rank_reported_first_counts(
    service: ServiceProcess, job: JobSpec
) -> None:
    first = started(service.url, job).record
    assert first is not None
    second = replace(first)
    client = BSOClient(service.url)
    end_at_once(client, first, "out_of_memory", "CUDA out of memory")
    end_at_once(client, second, "errored", "connection closed by peer")
    assert first.outcome == second.outcome == "out_of_memory"
    assert second.reason.endswith("on this rank: connection closed by peer")


def test_aborting_is_one_call_of_a_second_that_is_not_retried(
    service: ServiceProcess, job: JobSpec
) -> None:
    with Proxy(service.url, instead=Away("end", (503, {}))) as proxy, recorded_calls() as calls:
        run = started(proxy.url, job)
        calls.clear()
        run.abort("errored", "mine")
    assert_one_call_of_a_second(calls.bounds_s, calls.requests)


@pytest.mark.parametrize("error", [OSError("broken"), RuntimeError("no new thread at exit")])
def test_ending_at_once_never_raises(error: Exception) -> None:
    class Broken(BSOClient):
        def end_trial(self, *args: Any, **arguments: Any) -> None:
            raise error

    ended = record()
    end_at_once(Broken("http://127.0.0.1:1"), ended, "errored", "mine")
    assert (ended.outcome, ended.reason) == ("errored", "mine")


def test_a_run_of_a_deleted_job_goes_on_and_changes_nothing_of_the_new_one(
    service: ServiceProcess, job: JobSpec
) -> None:
    old = started(service.url, job)
    assert old.record is not None
    url = f"{service.url}/api/v1/jobs/{job.job_id}?force=true"
    assert requests.delete(url, timeout=LIMIT_S).status_code == 204
    new = started(service.url, job)
    assert new.record is not None
    with pytest.warns(UserWarning, match="of a job that was deleted.*training continues"):
        assert report(old, 1, 0.5).outcome == "errored"
    end_at_once(BSOClient(service.url), old.record, "out_of_memory", "the GPU is full")
    status = BSOClient(service.url).trial_status(job.job_id, new.record.trial.trial_number)
    assert status is not None
    assert (status.outcome, status.reports) == (None, 0)


def test_an_end_that_the_service_refuses_is_lost_with_the_services_reason(
    service: ServiceProcess, job: JobSpec
) -> None:
    run = started(service.url, job)
    assert run.record is not None
    BSOClient(service.url).end_trial(run.record.trial, "diverged", "someone else ended it")
    with pytest.warns(UserWarning, match="could not be reported"):
        run.end("not_converged", "training ended")
    assert run.record.outcome == "lost"
    assert "has ended: diverged" in run.record.reason
    assert "could not be reached" not in run.record.reason


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


def test_a_target_reached_while_the_service_is_away_ends_the_loop_and_the_trial_is_lost(
    own_service: ServiceProcess,
) -> None:
    with warnings.catch_warnings(record=True) as seen, recurrence(own_service, new_job()) as run:
        warnings.simplefilter("always")
        own_service.kill()
        assert run.report(0.1).stop is False
        decision = run.report(0.95)
        assert (decision.stop, decision.outcome) == (True, None)
    assert run.outcome == "lost"
    assert any("ended as lost" in str(each.message) for each in seen)
