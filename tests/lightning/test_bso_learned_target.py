"""A callback that is given no target: the service learns it from baselines."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import requests
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from programs import AfterEpoch, Data, Net, crash, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess
from waiting import LIMIT_S

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed
from zeus_lightning.client import BSOClient

LEARNED = 0.91 - 1.8856 * (4 / 3) ** 0.5 * 0.01
"""From best values of 0.90, 0.91 and 0.92."""


class FallingNet(Net):
    """Logs as `val_loss` what `Net` logs as `val_acc`."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.val_acc[min(self.validations, len(self.val_acc) - 1)])


def run(service: ServiceProcess, job: str, net: Net, *others: Callback, **arguments: Any) -> Any:
    """Train once, as one run of a job that is given no target."""
    callback = zeus(service.url, job_id=job, target_metric=None, **arguments)
    trainer(*others, callback).fit(net, Data())
    return callback


def baselines(service: ServiceProcess, job: str, *best: float, **arguments: Any) -> None:
    for value in best:
        run(service, job, Net((0.3, value, 0.5)), **arguments)


def test_the_third_baseline_sets_the_target_and_the_next_run_stops_at_it(
    service: ServiceProcess,
) -> None:
    job = new_job()
    for number, best in enumerate((0.9, 0.92, 0.91), 1):
        net = Net((0.3, best, 0.5))
        callback = run(service, job, net)
        assert net.validations == 5  # to the end of the program
        assert (callback.trial.why, callback.batch_size) == ("baseline", 8)
        assert callback.trial.target_metric is None
        assert callback.outcome == ("completed" if number < 3 else "converged")
    net = Net((0.3, 0.89, 0.95))
    callback = run(service, job, net)
    assert (callback.outcome, net.validations) == ("converged", 2)
    assert callback.trial.target_metric == callback.job.target_metric
    assert callback.job.target_metric == pytest.approx(LEARNED, abs=1e-4)
    assert outcomes(service.url, job) == ["converged"] * 4
    assert [trial["epoch"] for trial in trials(service.url, job)] == [2, 2, 2, 2]


def test_a_falling_metric_of_early_stopping_is_learned(service: ServiceProcess) -> None:
    job, losses = new_job(), (0.9, 0.2, 0.4, 0.4, 0.4)
    for _ in range(3):
        net = FallingNet(losses)
        stopping = EarlyStopping("val_loss", patience=2)
        run(service, job, net, stopping, monitor=None)
        assert net.validations == 4  # EarlyStopping ended it
    callback = run(service, job, FallingNet((0.9, 0.3, 0.2, 0.1)), monitor="val_loss")
    assert (callback.job.higher_is_better, callback.job.target_metric) == (False, 0.2)
    assert (callback.outcome, callback.last_report.epoch) == ("converged", 3)


def test_a_baseline_that_is_interrupted_and_resumed_is_one(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """And it trains to completion, even though the target has been learned meanwhile."""
    job = new_job()
    baselines(service, job, 0.9, 0.92)
    saver = ModelCheckpoint(tmp_path, "first")
    broken = zeus(service.url, job_id=job, target_metric=None)
    with pytest.raises(ZeroDivisionError):
        trainer(saver, AfterEpoch(1, crash), broken, enable_checkpointing=True).fit(
            Net((0.91,)), Data()
        )
    baselines(service, job, 0.91)
    resumed, net = zeus(service.url, job_id=job, target_metric=None), Net((0.95,))
    trainer(resumed).fit(net, Data(), ckpt_path=tmp_path / "first.ckpt")
    assert net.validations == 4
    assert resumed.outcome == "converged"
    assert outcomes(service.url, job) == [*["converged"] * 4, "withdrawn"]
    answer = requests.get(f"{service.url}/api/v1/jobs/{job}", timeout=LIMIT_S).json()
    assert answer["completed_baselines"] == 4


def test_a_target_that_is_learned_between_registration_and_start_is_the_runs(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, start = new_job(), BSOClient.start_trial
    baselines(service, job, 0.9, 0.92)

    def start_after_another(client: BSOClient, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        baselines(service, job, 0.91)
        return start(client, *arguments, **named)

    monkeypatch.setattr(BSOClient, "start_trial", start_after_another)
    callback = run(service, job, Net((0.3, 0.9)))
    assert callback.job.target_metric == pytest.approx(LEARNED, abs=1e-4)
    assert (callback.outcome, callback.last_report.epoch) == ("converged", 2)


def test_a_run_with_fewer_epochs_than_the_job_is_no_baseline_and_no_failure(
    service: ServiceProcess,
) -> None:
    job = new_job()
    baselines(service, job, 0.9)
    callback = zeus(service.url, job_id=job, target_metric=None)
    trainer(callback, max_epochs=1).fit(Net((0.1,)), Data())
    assert (callback.outcome, callback.trial.why) == ("interrupted", "baseline")
    baselines(service, job, 0.92, 0.91)
    callback = zeus(service.url, job_id=job, target_metric=None)
    trainer(callback, max_epochs=1).fit(Net((0.1,)), Data())
    assert callback.trial.target_metric is not None
    assert callback.outcome == "interrupted"
    assert (
        "the Trainer's max_epochs is 1, but the job's is 5"
        in trials(service.url, job)[-1]["reason"]
    )


def test_a_baseline_that_max_time_ends_says_that_it_does_not_count(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, target_metric=None, max_epochs=10**6)
    with pytest.warns(UserWarning, match="interrupted: max_time was .*counts only if it is r"):
        trainer(callback, max_time={"milliseconds": 300}, max_epochs=-1).fit(Net((0.1,)), Data())
    assert callback.outcome == "interrupted"
    assert callback._record.asks_for_action


def test_a_learned_target_that_asks_for_nothing_is_a_warning(service: ServiceProcess) -> None:
    job = new_job()
    run(service, job, Net((0.5,)), baseline_runs=2)
    with pytest.warns(UserWarning, match="is too easy, met at each first validation"):
        run(service, job, Net((0.9,)))


def test_a_baseline_that_diverges_is_a_failure_and_teaches_no_target(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with pytest.raises(ZeusTrialFailed, match="No target can be learned from this baseline"):
        run(service, job, Net((0.3, float("nan"))))
    callback = run(service, job, Net((0.9,)))
    assert (callback.trial.why, callback.outcome) == ("baseline", "completed")
    assert outcomes(service.url, job) == ["diverged", "completed"]


def registered(service: ServiceProcess, **fields: Any) -> str:
    """A job that was registered before its first run."""
    job = new_job()
    spec = {"job_id": job, "target_metric": 0.8, "higher_is_better": True, "monitor": "val_acc"}
    sizes = {"batch_sizes": [8], "default_batch_size": 8, "max_epochs": 3}
    spec |= {"policy": "zeus"} | sizes | fields
    answer = requests.post(f"{service.url}/api/v1/jobs", json=spec, timeout=LIMIT_S)
    assert answer.status_code == 201, answer.text
    return job


def test_a_callback_takes_from_a_registered_job_what_it_was_not_given(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spec = {
        "batch_sizes": [4, 16],
        "default_batch_size": 16,
        "target_metric": 0.25,
        "higher_is_better": False,
        "monitor": "val_loss",
        "max_epochs": 3,
        "eta_knob": 1.0,
        "beta_knob": 5.0,
        "policy": "zeus",
        "baseline_runs": 5,
        "seed": 4,
    }
    job = registered(service, **spec)
    monkeypatch.setenv("ZEUS_JOB_ID", job)
    callback, net = ZeusBSOCallback(service.url), FallingNet((0.9, 0.3, 0.2))
    trainer(callback, EarlyStopping("val_acc", mode="max", strict=False)).fit(net, Data())
    assert (callback.outcome, callback.last_report.epoch) == ("converged", 3)
    known = callback.job.to_json()
    assert {name: known[name] for name in spec} == spec
    assert callback.job.job_id == job
    assert callback.batch_size == 16
    for kept in ("default_batch_size 16 (not 8)", "max_epochs 3 (not 5)"):
        assert kept in caplog.text
    assert "monitor val_loss (not val_acc), mode min (not max)" in caplog.text


def test_batch_sizes_are_per_device_if_the_registered_job_says_so(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sizes = {"batch_sizes": [3, 9], "default_batch_size": 9, "beta_knob": None}
    job, seen = registered(service, batch_size_scope="per_device", **sizes), []
    for _ in range(2):
        net, callback = Net(), ZeusBSOCallback(service.url, job_id=job, lr_scaling="linear")
        trainer(callback, accumulate_grad_batches=2).fit(net, Data(batch_size=9))
        seen.append((callback.batch_size, max(net.batch_lengths)))
    assert seen == [(9, 9), (3, 3)]
    assert "keeps its registered default_batch_size" not in caplog.text
    assert f"multiplied the learning rates by {3 / 9:.6g}" in caplog.text


@pytest.mark.parametrize("is_away", [False, True])
def test_a_per_device_trial_is_resumed_without_repeating_the_scope(
    service: ServiceProcess, tmp_path: Path, is_away: bool
) -> None:
    sizes = {"batch_sizes": [9], "default_batch_size": 9}
    job = registered(service, batch_size_scope="per_device", **sizes)
    saver, broken = ModelCheckpoint(tmp_path, "first"), ZeusBSOCallback(service.url, job_id=job)
    options = {"accumulate_grad_batches": 2, "enable_checkpointing": True}
    with pytest.raises(ZeroDivisionError):
        trainer(saver, AfterEpoch(1, crash), broken, **options).fit(Net(), Data(batch_size=9))
    url, net = "http://127.0.0.1:1" if is_away else service.url, Net((0.9,))
    resumed = ZeusBSOCallback(url, job_id=job, target_metric=0.8, require_service=False)
    trainer(resumed, **options).fit(net, Data(batch_size=4), ckpt_path=tmp_path / "first.ckpt")
    assert max(net.batch_lengths) == 9
    assert resumed.outcome == (None if is_away else "converged")


def test_the_epochs_of_a_registered_job_end_a_training_that_has_no_end(
    service: ServiceProcess,
) -> None:
    job, net = registered(service), Net((0.1,))
    callback = ZeusBSOCallback(service.url, job_id=job)
    with pytest.raises(ZeusTrialFailed, match="not_converged"):
        trainer(callback, max_epochs=-1).fit(net, Data())
    assert net.validations == 3
