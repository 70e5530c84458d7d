"""A second `fit` of a Trainer or a module does not start from scratch, so it has no trial."""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from programs import (
    AfterStep,
    Data,
    Net,
    WorkMeter,
    crash,
    interrupt,
    new_job,
    outcomes,
    trainer,
    zeus,
)
from service_process import ServiceProcess

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed

PER_EPOCH = 64 // 4  # steps, of a trial that trains with batch size 4
WITHOUT = "was already used for training, so this fit is not measured"


class Recorded(Net):
    """Counts the steps since the Trainer's first."""

    def on_train_start(self) -> None:
        self.steps_before = self.trainer.global_step
        self.batch_lengths.clear()


class Run:
    """A Trainer whose trial trains with batch size 4, where the program says 8."""

    def __init__(self, url: str, *others: Callback, **arguments: Any) -> None:
        self.url = url
        self.id = new_job()
        self.meter = WorkMeter()
        trainer(self.callback()).fit(Net((0.9,)), Data())
        self.zeus = self.callback(**arguments)
        self.net = Recorded()
        self.data = Data(batch_size=8)
        saves = any("Checkpoint" in type(other).__name__ for other in others)
        self.trainer = trainer(
            self.meter, self.zeus, *others, max_epochs=9, enable_checkpointing=saves
        )

    def callback(self, **arguments: Any) -> ZeusBSOCallback:
        fixed = {"job_id": self.id, "meter": self.meter, "max_epochs": 9, "beta_knob": None}
        return zeus(self.url, **(fixed | arguments))

    def fit(self, net: Net | None = None, **arguments: Any) -> None:
        with suppress(ZeroDivisionError, SystemExit):
            self.trainer.fit(net or self.net, self.data, **arguments)

    @property
    def spent(self) -> tuple[float, float]:
        assert self.zeus.last_report is not None
        return self.zeus.last_report.energy_j, self.zeus.last_report.time_s


def test_after_a_verdict_it_trains_on_without_a_trial(service: ServiceProcess) -> None:
    run = Run(service.url)
    run.fit()
    with pytest.warns(UserWarning, match=WITHOUT):
        run.fit()
    assert run.net.batch_lengths == {8}
    assert (run.zeus.trial, run.zeus.outcome) == (None, None)
    run.fit()  # the same once more
    assert outcomes(service.url, run.id) == ["converged", "converged"]


def test_one_that_has_no_epochs_left_does_nothing(service: ServiceProcess) -> None:
    run = Run(service.url)
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit_loop.epoch_loop.max_steps = -1
    with pytest.raises(ZeusTrialFailed):
        run.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run.fit()
    assert outcomes(service.url, run.id) == ["converged", "not_converged"]


def test_a_checkpoint_goes_before_the_weights_that_the_trainer_has(
    service: ServiceProcess, tmp_path: Path
) -> None:
    saver = ModelCheckpoint(tmp_path, save_last=True)
    run = Run(service.url, saver, AfterStep(PER_EPOCH + 3, interrupt))
    run.fit()
    run.fit(ckpt_path="last")
    assert run.net.steps_before == PER_EPOCH
    assert outcomes(service.url, run.id) == ["converged", "converged"]
    assert run.spent == (3 * PER_EPOCH * 3.0, 3 * PER_EPOCH)  # the three lost steps do not count


@pytest.mark.parametrize(
    ("kind", "step", "zeus_first"),
    [
        (OnExceptionCheckpoint, 3, True),
        (ModelCheckpoint, PER_EPOCH + 3, False),
    ],
)
def test_a_checkpoint_saved_on_an_exception_counts_what_was_spent_by_then(
    service: ServiceProcess, tmp_path: Path, kind: Any, step: int, zeus_first: bool
) -> None:
    if kind is OnExceptionCheckpoint:
        saver = OnExceptionCheckpoint(tmp_path, "saved")
    else:
        saver = ModelCheckpoint(tmp_path, "saved", save_on_exception=True, every_n_epochs=99)
    run = Run(service.url, saver, AfterStep(step, crash))
    if not zeus_first:
        run.trainer.callbacks.sort(key=lambda each: isinstance(each, ZeusBSOCallback))
    run.fit()
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    of_zeus = saved["callbacks"]["ZeusBSOCallback"]
    assert (of_zeus["spent"]["energy_j"], of_zeus["spent"]["time_s"]) == (step * 3.0, step)
    again = run.callback()
    Trainer(
        callbacks=[run.meter, again], logger=False, enable_checkpointing=False, max_epochs=9
    ).fit(Net((0.9,)), Data(8), ckpt_path=tmp_path / "saved.ckpt")
    assert outcomes(service.url, run.id) == ["converged", "converged", "withdrawn"]
    rest = -step % PER_EPOCH  # Lightning takes up the epoch where it was
    assert again.last_report.energy_j == (step + rest) * 3.0


class TestOfATrainedModule:
    """In a new Trainer: its weights go on, but its epochs begin anew."""

    def test_it_trains_without_a_trial(self, service: ServiceProcess) -> None:
        job, net, data = new_job(), Net((0.9,)), Data()
        trainer(zeus(service.url, job_id=job)).fit(net, data)
        callback = zeus(service.url, job_id=job)
        with pytest.warns(UserWarning, match=WITHOUT):
            trainer(callback).fit(net, data)
        assert callback.trial is None
        assert outcomes(service.url, job) == ["converged"]

    def test_for_another_job_it_starts_a_trial(self, service: ServiceProcess) -> None:
        jobs, net, data = (new_job(), new_job()), Net((0.9,)), Data()
        for job in jobs:  # such as the head first, and then the whole network
            trainer(zeus(service.url, job_id=job)).fit(net, data)
        assert [outcomes(service.url, job) for job in jobs] == [["converged"], ["converged"]]

    def test_from_a_checkpoint_it_resumes_its_trial(
        self, service: ServiceProcess, tmp_path: Path
    ) -> None:
        job, net, data = new_job(), Net((0.1, 0.9)), Data()
        saves = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)
        stops = {"max_time": timedelta(microseconds=1), "enable_checkpointing": True}
        trainer(zeus(service.url, job_id=job), saves, **stops).fit(net, data)
        assert outcomes(service.url, job) == ["interrupted"]
        callback = zeus(service.url, job_id=job)
        trainer(callback).fit(net, data, ckpt_path=tmp_path / "last.ckpt")
        assert callback.trial.trial_number == 1
        assert outcomes(service.url, job) == ["converged"]
