"""The callback in the Trainer of the package `pytorch_lightning`, whose classes are others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import programs
import pytest
import pytorch_lightning as pl
import torch
from programs import AfterEpoch, Data, crash, new_job, outcomes, zeus
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from service_process import ServiceProcess

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed


class Net(pl.LightningModule):
    """Logs `val_acc` as scripted, one value per epoch; the last one repeats."""

    def __init__(self, val_acc: tuple[float, ...] = (0.1, 0.2, 0.9)) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.val_acc = val_acc
        self.batch_lengths: set[int] = set()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.batch_lengths.add(len(batch[0]))
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        epoch = min(self.trainer.current_epoch, len(self.val_acc) - 1)
        self.log("val_acc", self.val_acc[epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class PlData(pl.LightningDataModule):
    """The samples of `programs.Data`."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 8
        self.samples = Data().samples

    train_dataloader = Data.train_dataloader
    val_dataloader = Data.val_dataloader


trainer = partial(programs.trainer, kind=pl.Trainer)


def sixteen(url: str, **arguments: Any) -> ZeusBSOCallback:
    """The callback of a job that has one batch size, twice what the program says."""
    return zeus(url, **({"batch_sizes": [16], "default_batch_size": 16} | arguments))


def test_a_failed_batch_size_raises_with_the_best_checkpoint_saved(
    service: ServiceProcess, tmp_path: Path
) -> None:
    callback = zeus(service.url)
    stop = EarlyStopping("val_acc", mode="max", patience=1)
    saver = ModelCheckpoint(tmp_path, monitor="val_acc", mode="max")
    with pytest.raises(ZeusTrialFailed, match="another callback stopped training"):
        trainer(callback, stop, saver, enable_checkpointing=True).fit(Net((0.5, 0.1)), PlData())
    assert torch.load(saver.best_model_path, weights_only=True)["epoch"] == 0
    assert outcomes(service.url, callback.job.job_id) == ["not_converged"]


def test_a_checkpoint_resumes_the_trial_until_its_target(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job, saver = new_job(), ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    broken = sixteen(service.url, job_id=job)
    with pytest.raises(ZeroDivisionError):
        trainer(broken, saver, AfterEpoch(2, crash), enable_checkpointing=True).fit(
            Net((0.1,)), PlData()
        )
    resumed, net, data = sixteen(service.url, job_id=job), Net((0.9,)), PlData()
    trainer(resumed).fit(net, data, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert resumed.trial == broken.trial
    assert (resumed.last_report.sequence, resumed.last_report.epoch) == (3, 3)
    assert resumed.last_report.energy_j > broken.last_report.energy_j
    assert net.batch_lengths == {16}
    assert data.batch_size == 8
    assert outcomes(service.url, job) == ["converged", "withdrawn"]
