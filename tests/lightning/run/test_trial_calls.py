"""Heartbeats keep a trial alive and never disturb the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from lightning.pytorch import Callback
from programs import Data, Net, Raise, new_job, outcomes, trainer, zeus
from proxy import Body, Proxy, Request
from service_process import ServiceProcess
from waiting import wait_until


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "zeus-heartbeat"]


@pytest.fixture(autouse=True)
def _none_is_left() -> Any:
    wait_until(lambda: not threads())
    yield
    wait_until(lambda: not threads())


def with_a_short_lease(request: Request, body: Body) -> Body:
    """Give the run a lease of 0.3 s."""
    return body | {"lease_s": 0.3} if request.kind == "start" else body


class LongEpochs(Callback):
    """Each training batch waits until so many heartbeats have come in all."""

    def __init__(self, proxy: Proxy, beats: int) -> None:
        self.proxy = proxy
        self.beats = beats
        self.most_threads = 0

    def on_train_batch_end(self, *args: Any) -> None:
        wait_until(lambda: self.proxy.count("heartbeat") >= self.beats)
        self.most_threads = max(self.most_threads, len(threads()))
        assert all(thread.daemon for thread in threads())  # a request keeps no process alive


def test_a_long_epoch_is_kept_alive_by_one_thread_over_two_fits(service: ServiceProcess) -> None:
    job = new_job()
    with Proxy(service.url, after=with_a_short_lease) as proxy:
        callback = zeus(proxy.url, job_id=job)
        for beats in (3, 6):
            epochs = LongEpochs(proxy, beats)
            trainer(callback, epochs).fit(Net((0.9,)), Data())
            assert epochs.most_threads == 1
    assert outcomes(service.url, job) == ["converged", "converged"]


def test_it_ends_with_a_fit_that_an_error_ends(service: ServiceProcess) -> None:
    with Proxy(service.url, after=with_a_short_lease) as proxy:
        epochs = LongEpochs(proxy, 1)
        with pytest.raises(ZeroDivisionError):
            trainer(epochs, Raise(ZeroDivisionError("mine")), zeus(proxy.url)).fit(Net(), Data())
        assert epochs.most_threads == 1
        wait_until(lambda: not threads())


def test_a_heartbeat_that_is_refused_or_fails_changes_nothing(service: ServiceProcess) -> None:
    answers = iter([(409, {"code": "trial_finished"}), (500, {"code": "internal"}), (503, {})])

    def instead(request: Request) -> tuple[int, Body] | None:
        return next(answers, None) if request.kind == "heartbeat" else None

    with Proxy(service.url, instead=instead, after=with_a_short_lease) as proxy:
        callback = zeus(proxy.url)
        trainer(callback, LongEpochs(proxy, 5)).fit(Net((0.9,)), Data())
    assert callback.outcome == "converged"
