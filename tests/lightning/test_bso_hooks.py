"""When Lightning's hooks fire, and when there is a trial at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from programs import Data, Net, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess
from torch.utils.data import DataLoader

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed


class Epochs(Callback):
    """The epochs a callback beside it has reported, validation by validation."""

    def __init__(self, zeus: ZeusBSOCallback) -> None:
        self.zeus = zeus
        self.seen: list[int] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.zeus.report is not None:
            self.seen.append(self.zeus.report.epoch)


@pytest.mark.parametrize(
    ("arguments", "epochs"),
    [
        ({}, [1, 2, 3]),
        ({"num_sanity_val_steps": 0}, [1, 2, 3]),
        ({"num_sanity_val_steps": -1}, [1, 2, 3]),
        ({"check_val_every_n_epoch": 2, "max_epochs": 6}, [2, 4, 6]),
        ({"val_check_interval": 0.5}, [0, 1, 1]),
        ({"val_check_interval": 0.25}, [0, 0, 0]),
        ({"val_check_interval": 4, "check_val_every_n_epoch": None}, [0, 1, 1]),
        ({"limit_train_batches": 3}, [1, 2, 3]),
        ({"accumulate_grad_batches": 2}, [1, 2, 3]),
        ({"reload_dataloaders_every_n_epochs": 1}, [1, 2, 3]),
        ({"overfit_batches": 2}, [1, 2, 3]),
    ],
)
def test_each_validation_is_reported_with_the_epochs_completed(
    service: ServiceProcess, arguments: dict[str, Any], epochs: list[int]
) -> None:
    callback = zeus(service.url)
    beside = Epochs(callback)
    trainer(callback, beside, **arguments).fit(Net(), Data())
    assert beside.seen == epochs
    assert callback.outcome == "converged"


def test_without_validation_a_train_metric_is_reported_at_each_epochs_end(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, monitor="train_loss", mode="min", target_metric=1e9)
    trainer(callback, limit_val_batches=0).fit(Net(), Data())
    assert callback.outcome == "converged"
    assert callback.report.epoch == 1


def test_fast_dev_run_has_no_trial(service: ServiceProcess) -> None:
    job = new_job()
    callback = zeus(service.url, job_id=job)
    trainer(callback, fast_dev_run=True).fit(Net(), Data())
    assert callback.trial is None
    assert trials(service.url, job) == []


def test_fast_dev_run_after_a_failed_fit_does_not_fail_again(service: ServiceProcess) -> None:
    callback = zeus(service.url)
    with pytest.raises(ZeusTrialFailed):
        trainer(callback).fit(Net((0.1,)), Data())
    trainer(callback, fast_dev_run=True).fit(Net(), Data())
    assert callback.outcome is None


def test_validate_test_and_predict_have_no_trial(service: ServiceProcess) -> None:
    class Whole(Net):
        def test_step(self, batch: Any, index: int) -> None:
            pass

        def predict_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.layer(batch[0])

    job = new_job()
    runner = trainer(zeus(service.url, job_id=job))
    loader = DataLoader(Data().samples)
    runner.validate(Whole(), datamodule=Data())
    runner.test(Whole(), loader)
    runner.predict(Whole(), loader)
    assert trials(service.url, job) == []


def test_a_fit_that_trains_nothing_withdraws_its_trial(service: ServiceProcess) -> None:
    callback, net = zeus(service.url, max_epochs=5), Net((0.1,))
    runner = trainer(callback, max_epochs=2)
    with pytest.raises(ZeusTrialFailed):
        runner.fit(net, Data())
    runner.fit(net, Data())  # its epochs are used up
    assert outcomes(service.url, callback.job.job_id) == ["not_converged", "withdrawn"]


def test_a_run_resumed_from_a_checkpoint_sits_out(service: ServiceProcess, tmp_path: Path) -> None:
    job, net = new_job(), Net()
    runner = trainer(zeus(service.url, job_id=job))
    runner.fit(net, Data())
    runner.save_checkpoint(tmp_path / "a.ckpt")
    net.batch_lengths.clear()
    resumed = zeus(service.url, job_id=job)
    with pytest.warns(UserWarning, match="resumed from a checkpoint"):
        trainer(resumed).fit(net, Data(), ckpt_path=tmp_path / "a.ckpt")
    assert net.batch_lengths == {8}
    assert outcomes(service.url, job) == ["converged", "withdrawn"]


def test_a_checkpoint_loaded_to_validate_starts_nothing(
    service: ServiceProcess, tmp_path: Path
) -> None:
    callback = zeus(service.url)
    runner = trainer(callback)
    runner.fit(Net(), Data())
    runner.save_checkpoint(tmp_path / "a.ckpt")
    runner.validate(Net(), datamodule=Data(), ckpt_path=tmp_path / "a.ckpt")
    assert outcomes(service.url, callback.job.job_id) == ["converged"]


def test_the_callback_overrides_no_hook_that_fires_for_every_batch() -> None:
    per_batch = [name for name in dir(Callback) if "batch" in name or "optimizer" in name]
    per_batch += [name for name in dir(Callback) if "backward" in name]
    assert len(per_batch) > 10
    for name in per_batch:
        assert getattr(ZeusBSOCallback, name) is getattr(Callback, name)
