"""A run trains although every batch size of its job has failed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from programs import Data, Net, StepMeter, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import Recurrence, ZeusBSOCallback, ZeusTrialFailed


def train(service: ServiceProcess, job: str, *metrics: float, **arguments: Any) -> ZeusBSOCallback:
    """One run, of two epochs, of a job with the batch sizes 8, the default, and 16."""
    given = {"policy": None, "raise_on_failure": False, **arguments}
    callback = zeus(service.url, job_id=job, batch_sizes=[8, 16], **given)
    trainer(callback, max_epochs=2).fit(Net(metrics), Data(batch_size=8))
    return callback


@pytest.fixture(params=["zeus", "information_directed"])
def job(service: ServiceProcess, request: pytest.FixtureRequest) -> str:
    """A job whose runs have failed with every batch size that its policy offers."""
    name, policy = new_job(), request.param
    while train(service, name, 0.1, policy=policy).trial.why != "control":
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
    assert "This was a control trial, with the default batch size" in texts[1]
    assert "another batch size" not in texts[1]


def test_a_control_trial_that_reaches_the_target_revives_the_job(
    service: ServiceProcess, job: str
) -> None:
    assert train(service, job, 0.1, 0.9).outcome == "converged"
    callback = train(service, job, 0.9)
    assert callback.trial.why in ("explore", "exploit")
    assert (callback.batch_size, callback.outcome) == (8, "converged")


def test_the_loop_of_a_recurrence_also_gets_a_control_trial(
    service: ServiceProcess, job: str
) -> None:
    run = Recurrence(
        service.url,
        job_id=job,
        target_metric=0.8,
        batch_sizes=[8, 16],
        default_batch_size=8,
        max_epochs=2,
        meter=StepMeter(),
    )
    with (
        pytest.warns(UserWarning, match="no batch size left to try"),
        pytest.raises(ZeusTrialFailed, match="This was a control trial"),
        run,
    ):
        run.report(0.1)
    assert run.trial is not None
    assert (run.trial.why, run.batch_size, run.outcome) == ("control", 8, "not_converged")
