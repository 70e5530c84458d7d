"""When Lightning's hooks fire, and when there is a trial at all."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from programs import (
    FOUR,
    BreaksOnException,
    Data,
    Net,
    Steps,
    TrainAcc,
    Whole,
    new_job,
    outcomes,
    trainer,
    trials,
    zeus,
)
from service_process import ServiceProcess
from torch.utils.data import DataLoader

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed


class Epochs(Callback):
    """The epochs a callback beside it has reported, validation by validation."""

    def __init__(self, zeus: ZeusBSOCallback) -> None:
        self.zeus = zeus
        self.seen: list[int] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.zeus.last_report is not None:
            self.seen.append(self.zeus.last_report.epoch)


@pytest.mark.parametrize(
    ("arguments", "epochs", "steps"),
    [
        ({"num_sanity_val_steps": 0}, [1, 2, 3], 3 * 8),
        ({"check_val_every_n_epoch": 2, "max_epochs": 6}, [2, 4, 6], 6 * 8),
        ({"val_check_interval": 4, "check_val_every_n_epoch": None}, [0, 1, 1], 12),
        ({"val_check_interval": 0.4}, [0, 0, 1], 8 + 3),  # after 3 and 6 of each 8
        ({"val_check_interval": 4, "check_val_every_n_epoch": 2}, [1, 2, 3], 28),
        ({"limit_train_batches": 3}, [1, 2, 3], 3 * 3),
    ],
)
def test_each_validation_is_reported_with_the_epochs_completed_and_may_stop_training_there(
    service: ServiceProcess, arguments: dict[str, Any], epochs: list[int], steps: int
) -> None:
    callback, counted, net = zeus(service.url), Steps(), Net()
    beside = Epochs(callback)
    trainer(callback, beside, counted, **arguments).fit(net, Data())
    assert beside.seen == epochs
    assert counted.count == steps
    assert net.batch_lengths == {8}
    assert callback.outcome == "converged"


class NoValidation(Data):
    """Has nothing to validate on."""

    val_dataloader = None


@pytest.mark.parametrize(
    ("data", "arguments"),
    [(Data, {"limit_val_batches": 0}), (NoValidation, {})],
    ids=["no-batches", "no-loader"],
)
def test_without_validation_a_train_metric_is_reported_at_each_epochs_end(
    service: ServiceProcess, data: type[Data], arguments: dict[str, Any]
) -> None:
    callback, steps = zeus(service.url, monitor="train_acc"), Steps()
    trainer(callback, steps, **arguments).fit(TrainAcc(), data())
    assert callback.outcome == "converged"
    assert (callback.last_report.sequence, callback.last_report.epoch, steps.count) == (3, 3, 3 * 8)
    failing = zeus(service.url, monitor="train_acc")
    with pytest.raises(ZeusTrialFailed, match="not_converged"):
        trainer(failing, **arguments).fit(TrainAcc((0.1,)), data())
    assert (failing.last_report.metric, failing.last_report.epoch) == (pytest.approx(0.1), 5)


def test_a_failed_batch_size_is_raised_when_the_least_training_is_done(
    service: ServiceProcess,
) -> None:
    callback, steps = zeus(service.url), Steps()
    with pytest.raises(ZeusTrialFailed, match=r"diverged: the metric is 1e\+32 after 2"):
        trainer(callback, steps, min_epochs=4).fit(Net((0.1, 1e32, 0.9)), Data())
    assert steps.count == 4 * 8
    (trial,) = trials(service.url, callback.job.job_id)
    assert (trial["outcome"], trial["reports"]) == ("diverged", 1)


def test_fast_dev_run_has_no_trial_and_does_not_fail_again(service: ServiceProcess) -> None:
    callback = zeus(service.url, batch_sizes=[16], default_batch_size=16)
    with pytest.raises(ZeusTrialFailed):
        trainer(callback).fit(Net((0.1,)), Data())
    net = Net()
    trainer(callback, fast_dev_run=3).fit(net, Data(batch_size=8))
    assert (callback.trial, callback.outcome) == (None, None)
    assert net.batch_lengths == {8}
    job = new_job()
    trainer(zeus(service.url, job_id=job), fast_dev_run=True).fit(Net(), Data())
    assert trials(service.url, job) == []


def test_validate_test_and_predict_have_no_trial(service: ServiceProcess) -> None:
    job = new_job()
    runner = trainer(zeus(service.url, job_id=job))
    loader = DataLoader(Data().samples)
    runner.validate(Whole(), datamodule=Data())
    runner.test(Whole(), loader)
    runner.predict(Whole(), loader)
    assert trials(service.url, job) == []


def test_a_fit_whose_end_another_callback_broke_off_is_ended_and_undone_by_the_next(
    service: ServiceProcess,
) -> None:
    callback, data = zeus(service.url, **FOUR), Data(batch_size=8)
    with pytest.raises(OSError, match="in on_exception"):
        trainer(BreaksOnException(ZeroDivisionError()), callback).fit(Net(), data)
    assert data.batch_size == 4
    trainer(callback).fit(Net(), data)
    assert data.batch_size == 8
    assert outcomes(service.url, callback.job.job_id) == ["errored", "converged"]


@pytest.mark.parametrize(
    ("zeus_first", "val_acc", "outcome", "best"),
    [
        # stops where EarlyStopping's threshold is crossed
        (True, (0.1, 0.5, 0.9), "converged", 0.9),
        (True, (0.1, 0.5, 0.2, 0.3), "not_converged", 0.5),  # EarlyStopping's patience ends
        (False, (0.1, 0.5, float("nan")), "diverged", 0.5),
    ],
)
def test_the_best_checkpoint_is_there_however_the_trial_ended(
    service: ServiceProcess,
    tmp_path: Path,
    val_acc: tuple[float, ...],
    outcome: str,
    best: float,
    zeus_first: bool,
) -> None:
    callback, steps = zeus(service.url), Steps()
    stop = EarlyStopping(
        "val_acc", mode="max", patience=2, stopping_threshold=0.85, check_finite=True
    )
    saver = ModelCheckpoint(tmp_path, monitor="val_acc", mode="max")
    ours = [callback, stop, saver] if zeus_first else [saver, stop, callback]
    runner = trainer(*ours, steps, enable_checkpointing=True)
    if outcome == "converged":
        runner.fit(Net(val_acc), Data())
    else:
        with pytest.raises(ZeusTrialFailed):
            runner.fit(Net(val_acc), Data())
    assert steps.count == len(val_acc) * 8
    assert outcomes(service.url, callback.job.job_id) == [outcome]
    assert float(saver.best_model_score) == pytest.approx(best)
    saved = torch.load(saver.best_model_path, weights_only=True)
    assert saved["epoch"] == val_acc.index(best)


# Copies, made while it trains


class FailsInSetup(Data):
    """Raises an error before any callback is set up."""

    def setup(self, stage: str) -> None:
        raise ZeroDivisionError("mine")


class UsesCopy(Callback):
    """Trains with a copy of a callback within its fit, after a first attempt that fails."""

    def __init__(self, callback: ZeusBSOCallback) -> None:
        self.callback = callback

    def on_train_epoch_end(self, runner: Any, module: Any) -> None:
        if runner.current_epoch != 0:
            return
        other = pickle.loads(pickle.dumps(self.callback))
        assert (other.job, other.trial, other.outcome) == (None, None, None)
        with pytest.raises(ZeroDivisionError):
            trainer(other).fit(Net(), FailsInSetup())
        net = Net((0.9,))
        trainer(other).fit(net, Data(batch_size=8))
        assert (other.trial.trial_number, other.outcome) == (2, "converged")
        assert net.batch_lengths == {4}
        del other
        gc.collect()
        assert (self.callback.trial.trial_number, self.callback.outcome) == (1, None)


def test_a_copy_trains_a_trial_of_its_own_and_leaves_the_running_one(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, **FOUR, beta_knob=float("inf"))
    net, data = Net(), Data(batch_size=8)
    trainer(callback, UsesCopy(callback)).fit(net, data)
    assert outcomes(service.url, callback.job.job_id) == ["converged", "converged"]
    assert callback.last_report.epoch == 3
    assert net.batch_lengths == {4}
    assert data.batch_size == 8
