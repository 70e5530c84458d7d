"""Dataloaders that follow the batch size; those that do not are in `test_bso_bad_input.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import Data, Net, new_job, trainer, zeus
from service_process import ServiceProcess
from torch.utils.data import DataLoader, IterableDataset, Subset

from zeus_lightning import ZeusConfigError


class TakesShards(Data):
    """Trains each epoch on the next shard."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = iter(range(0, 64, 16))
        self.trained: list[int] = []

    def train_dataloader(self) -> Any:
        self.trained.append(next(self.shards))
        return DataLoader(Subset(self.samples, range(self.trained[-1], 64)), self.batch_size)


def test_dataloaders_are_built_for_the_training_alone_and_anew_each_epoch(
    service: ServiceProcess,
) -> None:
    data, net = TakesShards(), Net((0.1, 0.1, 0.1, 0.9))
    callback = zeus(service.url, batch_sizes=[4], default_batch_size=4)
    trainer(callback, reload_dataloaders_every_n_epochs=1).fit(net, data)
    assert net.batch_lengths == {4}
    assert data.trained == [0, 16, 32, 48]
    assert callback.outcome == "converged"


class Labelled(Net):
    """Semi-supervised: trains on labelled batches, and on unlabelled ones of another size."""

    def training_step(self, batch: Any, index: int) -> Any:
        assert len(batch["unlabelled"][0]) == 7 * len(batch["labelled"][0])
        return super().training_step(batch["labelled"], index)


class WithUnlabelled(Data):
    def train_dataloader(self) -> Any:
        return {
            "labelled": DataLoader(self.samples, batch_size=self.batch_size),
            "unlabelled": DataLoader(self.samples, batch_size=7 * self.batch_size, drop_last=True),
        }


def test_a_multiple_beside_a_loader_that_follows_is_a_warning(service: ServiceProcess) -> None:
    callback = zeus(service.url)
    message = (
        "loader 2 of 2 in the train_dataloader.. of datamodule WithUnlabelled has batches of 56"
    )
    with pytest.warns(UserWarning, match=message):
        trainer(callback, max_epochs=3).fit(Labelled(), WithUnlabelled())
    assert callback.outcome == "converged"


class Unreadable(Data):
    def train_dataloader(self) -> Any:
        return [torch.randn(self.batch_size, 4)[None] for _ in range(4)]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        yield from Data().samples


class Stream(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(Endless(), batch_size=self.batch_size)


@pytest.mark.parametrize(("data", "told"), [(Unreadable, True), (Stream, False)])
def test_only_a_loader_whose_batch_size_cannot_be_read_is_a_warning(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder, data: type[Data], told: bool
) -> None:
    callback = zeus(service.url)
    trainer(callback).fit(Net(), data())
    assert callback.outcome == "converged"
    text = "cannot read the batch size of the train_dataloader"
    assert any(text in str(each.message) for each in recwarn) is told


class Nested(Data):
    """Its batch size has another name and is nested, in a hyperparameter too."""

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__()
        del self.batch_size
        self.save_hyperparameters()
        self.data = SimpleNamespace(**data)

    def train_dataloader(self) -> Any:
        assert self.data.train_batch_size == self.hparams["data"]["train_batch_size"]
        return DataLoader(self.samples, batch_size=self.data.train_batch_size)


def test_a_nested_batch_size_is_set_restored_and_kept_out_of_checkpoints(
    service: ServiceProcess, tmp_path: Path
) -> None:
    own = {"train_batch_size": 16, "val_batch_size": 32}
    data, job, lengths = Nested(own), new_job(), []
    for number in (1, 2):
        net, saver = Net(), ModelCheckpoint(tmp_path, str(number))
        callback = zeus(service.url, job_id=job, batch_arg_name="data.train_batch_size")
        trainer(callback, saver, enable_checkpointing=True).fit(net, data)
        lengths.append(net.batch_lengths)
        assert data.data.train_batch_size == data.hparams["data"]["train_batch_size"] == 16
        saved = torch.load(tmp_path / f"{number}.ckpt", weights_only=True)
        assert saved["datamodule_hyper_parameters"] == {"data": own}
    assert lengths == [{16}, {8}]


class LikeHydraTemplate(Data):
    """Its setup(), before any callback's, sets what its dataloaders use."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        del self.batch_size
        self.save_hyperparameters()
        self.batch_size_per_device = batch_size

    def setup(self, stage: str) -> None:
        self.batch_size_per_device = self.hparams.batch_size // self.trainer.world_size

    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=self.batch_size_per_device)


def test_one_that_uses_what_setup_has_set_is_refused_with_the_argument_that_helps(
    service: ServiceProcess,
) -> None:
    job = new_job()
    only_size = {"batch_sizes": [4, 8], "default_batch_size": 4}
    helps = "sets, pass its name as batch_arg_name"
    with pytest.raises(ZeusConfigError, match=helps):
        trainer(zeus(service.url, job_id=job, **only_size)).fit(Net(), LikeHydraTemplate())
    net, helped = Net(), {"batch_arg_name": "batch_size_per_device"}
    trainer(zeus(service.url, job_id=job, **only_size, **helped)).fit(net, LikeHydraTemplate())
    assert net.batch_lengths == {4}
