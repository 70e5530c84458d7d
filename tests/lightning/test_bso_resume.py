"""A run that is resumed from a checkpoint resumes its trial."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from programs import (
    AfterEpoch,
    Data,
    Net,
    Steps,
    TrainAcc,
    Whole,
    WorkMeter,
    crash,
    new_job,
    outcomes,
    trainer,
    trials,
    zeus,
)
from service_process import ServiceProcess
from waiting import LIMIT_S

from zeus_lightning import ZeusBSOCallback, ZeusConfigError
from zeus_lightning.run.record import TrialRecord

PER_EPOCH = 64 // 4  # steps, of a trial that trains with batch size 4


class Job:
    """A job whose second trial trains with batch size 4, where the program says 8."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.id = new_job()
        trainer(self.callback(WorkMeter())).fit(Net((0.9,)), Data())

    def callback(self, meter: WorkMeter, **arguments: Any) -> ZeusBSOCallback:
        defaults = {"job_id": self.id, "meter": meter, "max_epochs": 9, "beta_knob": None}
        return zeus(self.url, **(defaults | arguments))

    def fit(
        self,
        val_acc: tuple[float, ...],
        *others: Callback,
        ckpt_path: Path | None = None,
        net: Net | None = None,
        trainer_arguments: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> tuple[ZeusBSOCallback, Net]:
        """Train, and leave a checkpoint of each epoch."""
        meter = arguments.pop("meter", WorkMeter())
        net = net or Net()
        net.val_acc = val_acc
        saver = ModelCheckpoint(self.folder, "{epoch}", save_top_k=-1, monitor=None)
        callback = self.callback(meter, **arguments)
        runner = trainer(
            meter,
            callback,
            saver,
            *others,
            **({"max_epochs": 9, "enable_checkpointing": True} | (trainer_arguments or {})),
        )
        with suppress(ZeroDivisionError, SystemExit):
            runner.fit(net, Data(batch_size=8), ckpt_path=ckpt_path)
        return callback, net

    def after(self, epoch: int) -> Path:
        """The checkpoint saved when so many epochs were done."""
        return self.folder / f"epoch={epoch - 1}.ckpt"

    def outcomes(self) -> list[str | None]:
        return outcomes(self.url, self.id)

    def beliefs(self) -> dict[str, Any]:
        known = requests.get(f"{self.url}/api/v1/jobs/{self.id}", timeout=LIMIT_S).json()
        return {name: known[name] for name in ("best_batch_size", "hardware")}


@pytest.fixture
def job(service: ServiceProcess, tmp_path: Path) -> Job:
    return Job(service.url, tmp_path)


def test_it_resumes_the_trial_with_its_batch_size_energy_and_time_also_twice(job: Job) -> None:
    job.fit((0.1,), AfterEpoch(1, crash))
    ended, _ = job.fit((0.2,), AfterEpoch(2, crash), ckpt_path=job.after(1))
    assert (ended.outcome, ended.trial.batch_size) == ("errored", 4)
    resumed, net = job.fit((0.9,), ckpt_path=job.after(2))
    assert job.outcomes() == ["converged", "converged", "withdrawn", "withdrawn"]
    assert net.batch_lengths == {4}
    assert resumed.trial == ended.trial
    assert resumed.last_report.to_json() | {"host_load": None} == {
        "host_load": None,
        "sequence": 3,
        "epoch": 3,
        "time_s": 3 * PER_EPOCH,
        "energy_j": 3 * PER_EPOCH * 3.0,
        "metric": 0.9,
        "power_limit_w": None,
        "default_power_limit_w": None,
    }
    trial = trials(job.url, job.id)[1]
    assert trial["cost"] == resumed.cost_j == 0.5 * 3.0 * 48 + 0.5 * 10 * 48


def test_a_metric_of_training_is_reported_by_the_resumed_run_too(job: Job) -> None:
    job.id, metrics, monitor = new_job(), (0.1, 0.2, 0.9), {"monitor": "train_acc"}
    job.fit(metrics, AfterEpoch(2, crash), net=TrainAcc(), **monitor)
    resumed, _ = job.fit(metrics, net=TrainAcc(), ckpt_path=job.after(2), **monitor)
    assert resumed.outcome == "converged"
    assert (resumed.last_report.sequence, resumed.last_report.epoch) == (3, 3)


def test_the_trial_that_setup_had_started_leaves_no_trace_in_the_beliefs_or_for_the_launcher(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    class Look(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.beliefs = job.beliefs()

    job.fit((0.1,), AfterEpoch(1, crash))
    before, look, written = job.beliefs(), Look(), []
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(tmp_path / "outcome.json"))
    monkeypatch.setattr(TrialRecord, "write", lambda record, _: written.append(record.outcome))
    caplog.clear()
    with caplog.at_level(logging.INFO):
        job.fit((0.9,), look, ckpt_path=job.after(1))
    assert look.beliefs == before
    assert "resuming trial 2" in caplog.text
    assert "trains with batch size" not in caplog.text
    assert "withdrawn" not in caplog.text
    assert written[0] is None
    assert set(written) == {None, "converged"}
    assert job.outcomes()[2] == "withdrawn"


def test_a_checkpoint_older_than_the_last_report_counts_from_where_it_was_saved(
    job: Job,
) -> None:
    job.fit((0.1, 0.2, 0.3, 0.4), AfterEpoch(4, crash))
    resumed, _ = job.fit((0.5, 0.9), ckpt_path=job.after(2))
    assert job.outcomes() == ["converged", "converged", "withdrawn"]
    report = resumed.last_report
    assert (report.sequence, report.epoch, report.metric) == (4 + 2, 4, 0.9)
    # the two epochs that were lost are not counted
    assert (report.time_s, report.energy_j) == (4 * PER_EPOCH, 4 * PER_EPOCH * 3.0)
    assert trials(job.url, job.id)[1]["cost"] == resumed.cost_j


def test_reports_the_service_missed_are_sent_by_the_resumed_run(
    own_service: ServiceProcess, tmp_path: Path
) -> None:
    job = Job(own_service.url, tmp_path)
    job.fit((0.1, 0.2, 0.3), AfterEpoch(1, own_service.kill), AfterEpoch(3, crash))
    own_service.start()
    resumed, _ = job.fit((0.9,), ckpt_path=job.after(3))
    assert resumed.outcome == "converged"
    with sqlite3.connect(own_service.database_url.removeprefix("sqlite:///")) as database:
        reports = database.execute(
            "SELECT sequence, epoch, metric FROM reports WHERE trial_number = 2 ORDER BY rowid"
        ).fetchall()
    assert reports == [(1, 1, 0.1), (2, 2, 0.2), (3, 3, 0.3), (4, 4, 0.9)]


def test_a_trial_that_has_ended_cannot_be_resumed(job: Job) -> None:
    job.fit((0.1, 0.9))
    steps = Steps()
    with pytest.raises(
        ZeusConfigError, match=f"the checkpoint belongs to trial 2 of job '{job.id}'"
    ):
        job.fit((0.9,), steps, ckpt_path=job.after(2))
    assert steps.count == 0
    assert job.outcomes() == ["converged", "converged", "withdrawn"]


def test_a_checkpoint_without_a_trial_is_trained_on_without_one(
    service: ServiceProcess, tmp_path: Path
) -> None:
    plain = trainer(max_epochs=1)
    plain.fit(Net(), Data())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    job, net, steps = new_job(), Net((0.1, 0.1, 0.9)), Steps()
    callback = zeus(service.url, job_id=job, batch_sizes=[8, 16], default_batch_size=16)
    with pytest.warns(UserWarning, match="the checkpoint was saved without a trial"):
        trainer(callback, steps, max_epochs=9).fit(net, Data(), ckpt_path=tmp_path / "plain.ckpt")
    assert net.batch_lengths == {8}
    assert steps.count == 3 * 8  # it ends at the target all the same
    assert outcomes(service.url, job) == ["withdrawn"]
    assert callback.trial is None


def test_a_checkpoint_loaded_to_validate_or_test_starts_and_resumes_nothing(job: Job) -> None:
    job.fit((0.1,), AfterEpoch(1, crash))
    data = Data()
    data.test_dataloader = data.val_dataloader
    for call in (Trainer.validate, Trainer.test):
        call(trainer(job.callback(WorkMeter())), Whole(), datamodule=data, ckpt_path=job.after(1))
    assert job.outcomes() == ["converged", "errored"]


def test_without_a_required_service_a_run_that_it_leaves_trains_on_with_its_batch_size(
    own_service: ServiceProcess, tmp_path: Path
) -> None:
    """The trial that the run began with is not reported to when the service is back."""

    class GoesAway(Callback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            own_service.kill()

        def on_train_start(self, *args: Any, **kwargs: Any) -> None:
            own_service.start()

    job = Job(own_service.url, tmp_path)
    job.fit((0.1,), AfterEpoch(1, crash))
    for others in ([GoesAway()], []):  # as it resumes, and before that
        with pytest.warns(UserWarning, match="without the service, so trial 2 .* gets no reports"):
            resumed, net = job.fit((0.95,), *others, ckpt_path=job.after(1), require_service=False)
        assert resumed.trial is None
        assert net.batch_lengths == {4}
        if others:
            # The job's first trial, the one that is not continued, and the one that the run began.
            reports = [trial["reports"] for trial in trials(own_service.url, job.id)]
            assert reports[1:] == [1, 0]
            own_service.kill()


def test_a_finder_of_lightnings_beside_it_resumes_nothing(job: Job) -> None:
    net = Net()
    net.lr = 0.01
    finder = LearningRateFinder(num_training_steps=5, early_stop_threshold=None)
    callback, _ = job.fit((0.1, 0.9), finder, net=net)
    assert callback.trial.trial_number == 2
    assert job.outcomes() == ["converged", "converged"]
    assert callback.last_report.energy_j == 2 * PER_EPOCH * 3.0
