"""A trial's start when no batch size is left, and heartbeats that never disturb the run."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
from lightning.pytorch import Callback
from programs import Data, Net, Raise, new_job, outcomes, recurrence, trainer, zeus
from proxy import Body, Proxy, Request
from service_process import ServiceProcess
from waiting import wait_until

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed


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


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (Raise(ZeroDivisionError("mine")), ZeroDivisionError),
        (Raise(KeyboardInterrupt()), SystemExit),
    ],
)
def test_it_ends_with_the_fit_however_that_ends(
    service: ServiceProcess, ends: Callback, error: type[BaseException]
) -> None:
    with Proxy(service.url, after=with_a_short_lease) as proxy:
        epochs = LongEpochs(proxy, 1)
        with pytest.raises(error):
            trainer(epochs, ends, zeus(proxy.url)).fit(Net(), Data())
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


# A job whose batch sizes have all failed


def train(service: ServiceProcess, job: str, *metrics: float, **arguments: Any) -> ZeusBSOCallback:
    """One run, of two epochs, of a job with the batch sizes 8, the default, and 16."""
    given = {"policy": None, "raise_on_failure": False, **arguments}
    callback = zeus(service.url, job_id=job, batch_sizes=[8, 16], **given)
    trainer(callback, max_epochs=2).fit(Net(metrics), Data(batch_size=8))
    return callback


@pytest.fixture
def job(service: ServiceProcess) -> str:
    """A job whose runs have failed with every batch size that its policy offers."""
    name = new_job()
    while train(service, name, 0.1, policy="zeus").trial.why != "control":
        assert len(outcomes(service.url, name)) < 20
    return name


def test_a_run_whose_job_has_no_batch_size_left_is_a_control_trial(
    service: ServiceProcess, job: str, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    recwarn.clear()
    callback = train(service, job, 0.1)
    assert (callback.trial.why, callback.batch_size) == ("control", 8)
    assert (callback.outcome, callback.last_report.epoch) == ("not_converged", 2)
    texts = [str(each.message) for each in recwarn if "zeus:" in str(each.message)]
    assert len(texts) == 2
    assert (
        f"job {job!r} has no batch size left to try, so this run trains with the default"
        in texts[0]
    )
    assert len(texts[0]) <= 200
    assert "Another control trial would do the same: check the target and the program" in texts[1]
    assert "another batch size" not in texts[1]


def test_the_loop_of_a_recurrence_also_gets_a_control_trial(
    service: ServiceProcess, job: str
) -> None:
    same_job = {"target_metric": 0.8, "default_batch_size": 8, "max_epochs": 2}
    run = recurrence(service.url, job, **same_job)
    with (
        pytest.warns(UserWarning, match="no batch size left to try"),
        pytest.raises(ZeusTrialFailed, match="Another control trial would do the same"),
        run,
    ):
        run.report(0.1)
    assert run.trial is not None
    assert (run.trial.why, run.batch_size, run.outcome) == ("control", 8, "not_converged")
