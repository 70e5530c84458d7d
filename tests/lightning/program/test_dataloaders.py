"""Dataloaders that follow the batch size; those that do not are in `test_bso_bad_input.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import FOUR, Data, Net, Steps, new_job, outcomes, trainer, zeus
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
    callback = zeus(service.url, **FOUR)
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


def test_a_loader_of_another_size_beside_one_that_follows_is_named_once(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    callback = zeus(service.url)
    with caplog.at_level("INFO"):
        trainer(callback, max_epochs=3).fit(Labelled(), WithUnlabelled())
    line = (
        "zeus: batch_size was set to 8; the train_dataloader() of datamodule WithUnlabelled also "
        "has loaders with batches of 56, which may be intended"
    )
    assert caplog.messages.count(line) == 1
    assert callback.outcome == "converged"


class InBatches(IterableDataset):
    """Yields whole batches."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        yield from torch.randn(64, 4).split(self.size)


class Streams(Data):
    """Its dataloader does not say which batch size it has: one of its own, or the attribute's."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self.size = size

    def train_dataloader(self) -> Any:
        return DataLoader(InBatches(self.size or self.batch_size), batch_size=None)


class TakesOver(Data):
    """Reloads a loader of a constant size."""

    def train_dataloader(self) -> Any:
        size = 8 if self.trainer.current_epoch else self.batch_size
        return DataLoader(self.samples, batch_size=size)


class Wrapped(Net):
    def training_step(self, batch: Any, index: int) -> Any:
        samples = batch if isinstance(batch, torch.Tensor) else batch[0]
        return super().training_step([samples], index)


@pytest.mark.parametrize(("data", "steps"), [(Streams(8), 0), (TakesOver(), 64 // 4)])
def test_batches_of_another_size_are_an_error_although_no_loader_says_it(
    service: ServiceProcess, data: Data, steps: int
) -> None:
    job: dict[str, Any] = {"job_id": new_job(), "batch_sizes": [4, 8]}
    trainer(zeus(service.url, **job)).fit(Net(), Data())  # with its own batch size, 8
    counter, callback = Steps(), zeus(service.url, **job)
    message = f"batch_size to 4 per device, but the .* of datamodule {type(data).__name__} has"
    runner = trainer(callback, counter, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(
        ZeusConfigError, match=f"{message} batches of 8; build loaders on each call"
    ):
        runner.fit(Wrapped(), data)
    assert counter.count == steps
    assert outcomes(service.url, job["job_id"]) == ["converged", "withdrawn"]


class Texts(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(["a"] * 64, batch_sampler=[[0, 1, 2, 3]] * 16)


class Reads(Net):
    def training_step(self, batch: Any, index: int) -> Any:
        return self.layer(torch.randn(len(batch), 4)).pow(2).mean()


class Few(Data):
    """Has fewer samples than a batch."""

    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_sampler=[[0, 1, 2]])


@pytest.mark.parametrize(
    ("data", "module", "told"),
    [
        (Streams(), Wrapped, False),
        (Few(), Wrapped, False),
        (Texts(), Reads, True),
        (Streams(5), Wrapped, True),  # not the program's own size, so they show nothing
    ],
)
def test_batches_that_do_not_show_their_size_are_a_warning(
    service: ServiceProcess,
    recwarn: pytest.WarningsRecorder,
    data: Data,
    module: type[Net],
    told: bool,
) -> None:
    callback = zeus(service.url, **FOUR)
    trainer(callback).fit(module(), data)
    assert callback.outcome == "converged"
    text = "cannot read the batch size of the train_dataloader"
    assert any(text in str(each.message) for each in recwarn) is told


class Divides(Net):
    """As Lightning's example for ImageNet divides among its devices."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 16

    def setup(self, stage: str) -> None:
        self.batch_size = self.batch_size // 2

    def train_dataloader(self) -> Any:
        return DataLoader(Data().samples, self.batch_size)


def test_a_setup_that_divides_the_batch_size_is_an_error_that_says_so(
    service: ServiceProcess,
) -> None:
    with pytest.raises(
        ZeusConfigError, match=r"to 16 per device, but the program changed it to 8;"
    ):
        trainer(zeus(service.url)).fit(Divides(), val_dataloaders=Data().val_dataloader())


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


class TrainBatchSize(Data):
    """Has its batch size under another name, and no other of training with such a name."""

    def __init__(self) -> None:
        super().__init__()
        del self.batch_size
        self.train_batch_size, self.eval_batch_size = 8, 32

    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=self.train_batch_size)


def test_the_one_attribute_whose_name_has_batch_size_in_it_is_found(
    service: ServiceProcess,
) -> None:
    job, data, trained = new_job(), TrainBatchSize(), []
    for _ in range(2):
        net = Net()
        trainer(zeus(service.url, job_id=job)).fit(net, data)
        trained.append(net.batch_lengths)
    assert trained == [{8}, {4}]
    assert data.train_batch_size == 8
    data.tune_batch_size = 32  # so neither is certain
    remedy = r"no attribute 'batch_size'.*; pass batch_arg_name='train_batch_size'"
    with pytest.raises(ZeusConfigError, match=remedy):
        trainer(zeus(service.url)).fit(Net(), data)


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


def test_a_batch_size_that_setup_divides_among_the_devices_is_set_and_restored(
    service: ServiceProcess,
) -> None:
    job, data, trained = new_job(), LikeHydraTemplate(), []
    for _ in range(2):
        net, callback = Net(), zeus(service.url, job_id=job)
        trainer(callback, accumulate_grad_batches=2).fit(net, data)
        trained.append((callback.batch_size, net.batch_lengths))
        assert (data.batch_size_per_device, data.hparams.batch_size) == (8, 8)
    assert trained == [(16, {8}), (8, {4})]


def test_one_that_uses_what_setup_has_set_is_refused_with_the_argument_that_helps(
    service: ServiceProcess,
) -> None:
    job, sizes = new_job(), {"batch_sizes": [4, 8], "default_batch_size": 4}
    other = {"batch_arg_name": "batch_size"}
    with pytest.raises(ZeusConfigError, match="or pass batch_arg_name="):
        trainer(zeus(service.url, job_id=job, **sizes, **other)).fit(Net(), LikeHydraTemplate())
    net, helped = Net(), {"batch_arg_name": "batch_size_per_device"}
    trainer(zeus(service.url, job_id=job, **sizes, **helped)).fit(net, LikeHydraTemplate())
    assert net.batch_lengths == {4}


class BuildsInSetup(Data):
    """Its setup(), before any callback's, builds the dataloader."""

    def setup(self, stage: str) -> None:
        self.train_loader = DataLoader(self.samples, batch_size=self.batch_size)

    def train_dataloader(self) -> Any:
        return self.train_loader


class BuildsAgain(BuildsInSetup):
    """As a program can do with a library's datamodule."""

    def train_dataloader(self) -> Any:
        self.setup("fit")
        return super().train_dataloader()


def test_a_loader_that_setup_has_built_is_a_warning_in_the_first_run(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url)
    with pytest.warns(
        match="BuildsInSetup returned a loader built before the callback set batch_size"
    ):
        trainer(callback).fit(Net(), BuildsInSetup())
    assert (callback.batch_size, callback.outcome) == (8, "converged")


def test_a_loader_that_setup_has_built_may_be_kept_if_there_is_one_batch_size(
    service: ServiceProcess, recwarn: pytest.WarningsRecorder
) -> None:
    trainer(zeus(service.url, batch_sizes=[8])).fit(Net(), BuildsInSetup())
    assert not any("built before" in str(each.message) for each in recwarn)


def test_a_loader_that_setup_builds_again_at_each_call_follows(service: ServiceProcess) -> None:
    job, trained = new_job(), []
    for _ in range(2):
        net = Net()
        trainer(zeus(service.url, job_id=job)).fit(net, BuildsAgain())
        trained.append(net.batch_lengths)
    assert trained == [{8}, {4}]
