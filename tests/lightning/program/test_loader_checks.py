"""Dataloaders that follow the batch size, which another one shows while a job is young."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import Data, Net, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess
from torch.utils.data import DataLoader

from zeus_lightning import ZeusConfigError


class Watched(Data):
    """Notes the batch size and the random number generator's state of each build."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[int] = []
        self.random: list[list[int]] = []

    def train_dataloader(self) -> Any:
        self.built.append(self.batch_size)
        self.random.append(torch.get_rng_state().tolist())
        torch.rand(3)
        return super().train_dataloader()


class Twice(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=2 * self.batch_size)


class FailsWithFour(Data):
    def train_dataloader(self) -> Any:
        assert self.batch_size != 4, "four is too few"
        return super().train_dataloader()


def test_the_first_night_builds_the_loader_with_another_size_too(
    service: ServiceProcess,
) -> None:
    job, data, built = new_job(), Watched(), []
    for _ in range(2):
        data.built.clear()
        trainer(zeus(service.url, job_id=job)).fit(Net(), data)
        built.append(list(data.built))
    assert built == [[4, 8], [4]]  # the second night trains with 4
    assert data.batch_size == 8


class TakesShards(Data):
    """Trains each epoch on the next shard."""

    def __init__(self) -> None:
        super().__init__()
        self.shards = iter(range(0, 64, 16))
        self.trained: list[int] = []

    def train_dataloader(self) -> Any:
        self.trained.append(next(self.shards))
        shard = torch.utils.data.Subset(self.samples, range(self.trained[-1], 64))
        return DataLoader(shard, batch_size=self.batch_size)


def test_data_that_are_reloaded_are_left_to_the_training(service: ServiceProcess) -> None:
    data, net = TakesShards(), Net((0.1, 0.1, 0.1, 0.9))
    callback = zeus(service.url)
    trainer(callback, reload_dataloaders_every_n_epochs=1).fit(net, data)
    assert data.trained == [0, 16, 32, 48]
    assert callback.outcome == "converged"


class KeepsFirst(Data):
    """Builds its loader once."""

    loader: DataLoader[Any] | None = None

    def train_dataloader(self) -> Any:
        self.loader = self.loader or super().train_dataloader()
        return self.loader


class Caches(Data):
    @functools.cache  # noqa: B019 - what the test is about; the objects are small
    def train_dataloader(self) -> Any:
        return super().train_dataloader()


class KeepsItElsewhere(Data):
    """Keeps its first loader where nobody else looks."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def train_dataloader(self) -> Any:
        self.kept.append(super().train_dataloader())
        return self.kept[0]


@pytest.mark.parametrize("data", [KeepsFirst, Caches])
def test_a_program_that_keeps_its_first_loader_is_not_refused(
    service: ServiceProcess, data: type[Data]
) -> None:
    job, lengths = new_job(), []
    for _ in range(2):
        net, callback = Net(), zeus(service.url, job_id=job)
        trainer(callback).fit(net, data())
        assert callback.outcome == "converged"
        lengths.append(net.batch_lengths)
    assert lengths == [{8}, {4}]


def test_one_that_keeps_it_elsewhere_is_refused_with_what_it_does(service: ServiceProcess) -> None:
    message = "set to 8 .* has batches of 4; it keeps the first loader that it builds, or its size"
    with pytest.raises(ZeusConfigError, match=message):
        trainer(zeus(service.url)).fit(Net(), KeepsItElsewhere())


class CountsSteps(Net):
    """Builds the dataloader before training begins."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.steps = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


def test_the_loader_that_was_built_last_is_the_one_that_trains(service: ServiceProcess) -> None:
    data, net = Watched(), CountsSteps()
    trainer(zeus(service.url), max_epochs=3).fit(net, data)
    assert data.built == [8, 4, 8]
    assert (net.steps, net.batch_lengths) == (3 * 64 // 8, {8})


def test_only_a_size_of_the_job_is_tried_and_random_numbers_stay_the_same(
    service: ServiceProcess,
) -> None:
    random = []
    for batch_sizes in ([8], [8, 16]):
        data = Watched()
        torch.manual_seed(0)
        trainer(zeus(service.url, batch_sizes=batch_sizes)).fit(Net(), data)
        assert data.built == [*batch_sizes[1:], 8]
        random.append(data.random[-1])
    assert random[0] == random[1]


def test_a_loader_whose_size_is_a_multiple_follows(service: ServiceProcess) -> None:
    job, lengths = new_job(), []
    for _ in range(2):
        net, callback = Net(), zeus(service.url, job_id=job)
        trainer(callback).fit(net, Twice())
        assert callback.outcome == "converged"
        lengths.append(net.batch_lengths)
    assert lengths == [{16}, {8}]


def test_the_batch_size_may_have_another_name_and_be_nested(service: ServiceProcess) -> None:
    class Nested(Data):
        def __init__(self) -> None:
            super().__init__()
            del self.batch_size
            self.data = SimpleNamespace(train_batch_size=16)

        def train_dataloader(self) -> Any:
            return DataLoader(self.samples, batch_size=self.data.train_batch_size)

    job, lengths, data = new_job(), [], Nested()
    for _ in range(2):
        net = Net()
        callback = zeus(service.url, job_id=job, batch_arg_name="data.train_batch_size")
        trainer(callback).fit(net, data)
        lengths.append(net.batch_lengths)
    assert lengths == [{16}, {8}]
    assert data.data.train_batch_size == 16


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
    helps = r"train_dataloader\(\) uses another attribute.*name that one by batch_arg_name="
    with pytest.raises(ZeusConfigError, match=helps):
        trainer(zeus(service.url)).fit(Net(), LikeHydraTemplate())
    job, lengths = new_job(), []
    for _ in range(2):
        net = Net()
        callback = zeus(service.url, job_id=job, batch_arg_name="batch_size_per_device")
        trainer(callback).fit(net, LikeHydraTemplate())
        lengths.append(net.batch_lengths)
    assert lengths == [{8}, {4}]


def test_a_budget_in_steps_ends_as_not_converged_or_converged(service: ServiceProcess) -> None:
    for val_acc, outcome in ((0.1, "not_converged"), (0.9, "converged")):
        callback = zeus(service.url, raise_on_failure=False)
        trainer(callback, max_epochs=-1, max_steps=20).fit(Net((val_acc,)), Data())
        assert callback.outcome == outcome


def test_a_loader_that_another_size_breaks_is_a_warning(service: ServiceProcess) -> None:
    callback = zeus(service.url)
    with pytest.warns(UserWarning, match="fails with batch size 4 per device.*four is too few"):
        trainer(callback).fit(Net(), FailsWithFour())
    assert callback.outcome == "converged"


class RefusesFour(Data):
    """Has a setter that takes no batch size below 8."""

    @property
    def batch_size(self) -> int:
        return self.size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if size < 8:
            raise ValueError(f"{size} is too few")
        self.size = size


def test_a_batch_size_that_the_program_refuses_ends_the_run_that_gets_it_and_no_other(
    service: ServiceProcess,
) -> None:
    job, net = new_job(), Net()
    with pytest.warns(UserWarning, match="fails with batch size 4 per device.*4 is too few"):
        trainer(zeus(service.url, job_id=job)).fit(net, RefusesFour())
    assert net.batch_lengths == {8}
    with pytest.raises(ValueError, match="4 is too few"):
        trainer(zeus(service.url, job_id=job)).fit(Net(), RefusesFour())
    # the third such end in a row makes the service pass over this batch size
    assert outcomes(service.url, job) == ["converged", "errored"]
