"""Dataloaders that are passed to `fit()` train with the trial's batch size."""

from __future__ import annotations

import inspect
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from programs import FOUR, AfterEpoch, Net, crash, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from zeus_lightning import ZeusConfigError, ZeusTrialFailed
from zeus_lightning.program.passed_loaders import passed_batch_size, resized

NUMBERS = TensorDataset(torch.arange(64.0).unsqueeze(1).expand(64, 4))


class Samples(Net):
    """Remembers the samples of each training batch, in their order."""

    def __init__(self, val_acc: tuple[float, ...] = (0.1, 0.9)) -> None:
        super().__init__(val_acc)
        self.seen: list[Any] = []
        self.validated: set[int] = set()

    def training_step(self, batch: Any, index: int) -> Any:
        leaves, _ = torch.utils._pytree.tree_flatten(batch)
        self.seen.append([leaf[:, 0].int().tolist() for leaf in leaves])
        return super().training_step(leaves, index)

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated.add(len(batch[0]))
        super().validation_step(batch, index)


class LooksAt(Callback):
    """Keeps the train dataloaders that training uses."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.loaders = trainer.train_dataloader


def shuffled(batch_size: int, seed: int = 7) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(NUMBERS, batch_size, shuffle=True, generator=generator)


def validation() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=32)


def test_the_first_run_trains_with_its_own_size_and_the_next_with_another(
    service: ServiceProcess,
) -> None:
    job, lengths, loader = new_job(), [], DataLoader(NUMBERS, batch_size=8)
    for _ in range(2):
        net, callback = Samples(), zeus(service.url, job_id=job)
        runner = trainer(callback)
        runner.fit(net, loader, validation())
        lengths.append((callback.batch_size, net.batch_lengths, net.validated))
        assert runner.fit_loop._data_source.instance is loader
    assert callback.job.default_batch_size == loader.batch_size == 8
    assert callback.job.batch_sizes == [1, 2, 4, 8, 16, 32, 64]
    assert lengths == [(8, {8}, {32}), (4, {4}, {32})]


def test_the_samples_come_in_the_order_of_a_program_with_that_batch_size(
    service: ServiceProcess,
) -> None:
    resized, own = Samples(), Samples()
    trainer(zeus(service.url, **FOUR)).fit(resized, shuffled(8), validation())
    trainer(max_epochs=2).fit(own, shuffled(4), validation())
    assert resized.seen == own.seen
    assert resized.seen[:16] != resized.seen[16:]


def test_a_resumed_run_trains_with_the_batch_size_of_its_checkpoint(
    service: ServiceProcess, tmp_path: Path
) -> None:
    sizes = {"job_id": new_job(), "batch_sizes": [4, 8], "default_batch_size": 8}
    loader = DataLoader(NUMBERS, batch_size=8)
    trainer(zeus(service.url, **sizes)).fit(Samples((0.9,)), loader, validation())
    lengths = []
    for others, ckpt_path in (([AfterEpoch(1, crash)], None), ([], tmp_path / "last.ckpt")):
        net, callback = Samples((0.1,) if others else (0.9,)), zeus(service.url, **sizes)
        saver = ModelCheckpoint(tmp_path, save_last=True)
        runner = trainer(saver, callback, *others, enable_checkpointing=True)
        with suppress(ZeroDivisionError):
            runner.fit(net, loader, validation(), ckpt_path=ckpt_path)
        lengths.append(net.batch_lengths)
        assert runner.fit_loop._data_source.instance is loader
    assert lengths == [{4}, {4}]
    assert outcomes(service.url, sizes["job_id"]) == ["converged", "converged", "withdrawn"]


def test_a_run_without_a_trial_trains_with_what_was_passed(service: ServiceProcess) -> None:
    net, loader = Samples((0.1,)), shuffled(8)
    runner = trainer(zeus(service.url, **FOUR), max_epochs=1)
    with pytest.raises(ZeusTrialFailed):
        runner.fit(net, loader, validation())
    net.batch_lengths.clear()
    runner.fit_loop.max_epochs = 2
    with pytest.warns(UserWarning, match="was already used for training"):
        runner.fit(net, loader, validation())
    assert net.batch_lengths == {8}


@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (lambda: {"a": shuffled(8), "b": [shuffled(8, 1), shuffled(8, 2)]}, 16),
        (lambda: CombinedLoader({"a": shuffled(8), "b": (shuffled(8, 1),)}, "min_size"), 16),
    ],
)
def test_each_loader_of_a_collection_is_resized_and_its_structure_is_kept(
    service: ServiceProcess, make: Any, batches: int
) -> None:
    net, look, passed = Samples((0.9,)), LooksAt(), make()
    trainer(zeus(service.url, **FOUR), look).fit(net, passed, validation())
    assert len(net.seen) == batches
    assert {len(leaf) for leaves in net.seen for leaf in leaves} == {4}
    was = passed.iterables if isinstance(passed, CombinedLoader) else passed
    specs = [torch.utils._pytree.tree_structure(each) for each in (look.loaders, was)]
    assert specs[0] == specs[1]
    assert {each.batch_size for each in CombinedLoader(was).flattened} == {8}


def test_loaders_of_another_size_than_the_first_ones_stay_as_they_are(
    service: ServiceProcess,
) -> None:
    passed = [shuffled(8), MyLoader(NUMBERS, 16), shuffled(8, 1), DataLoader(Stream(), 2)]
    net, callback = Samples((0.9,)), zeus(service.url, **FOUR)
    trainer(callback).fit(net, passed, validation())
    assert [len(leaf) for leaf in net.seen[0]] == [4, 16, 4, 2]
    assert callback.outcome == "converged"
    assert passed_batch_size(passed, "") == 8


def test_the_mode_of_a_combined_loader_is_kept() -> None:
    passed = CombinedLoader([shuffled(8), validation()], "sequential")
    again = resized(CombinedLoader([shuffled(8), shuffled(8)], "sequential"), 4)
    assert again._mode == passed._mode == "sequential"


def first(samples: list[Any]) -> Any:
    return samples[0]


def no_seed(worker: int) -> None:
    pass


def test_every_argument_of_torchs_dataloader_is_kept() -> None:
    given: dict[str, Any] = {
        "num_workers": 2,
        "collate_fn": first,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 3.0,
        "worker_init_fn": no_seed,
        "multiprocessing_context": torch.multiprocessing.get_context("spawn"),
        "generator": torch.Generator(),
        "prefetch_factor": 5,
        "persistent_workers": True,
        "pin_memory_device": "cuda",
        "in_order": False,
    }
    loader = DataLoader(NUMBERS, 8, shuffle=True, **given)
    again = resized(loader, 4)
    assert {name: getattr(again, name) for name in given} == given
    assert (again.dataset, again.sampler, again.batch_size) == (NUMBERS, loader.sampler, 4)
    assert again.batch_sampler.drop_last is True
    known = set(given) | {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler"}
    assert set(inspect.signature(DataLoader.__init__).parameters) == known


class MyLoader(DataLoader):
    pass


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from NUMBERS


class MySampler(SequentialSampler):
    pass


REFUSED: list[tuple[Any, str]] = [
    (MyLoader(NUMBERS, 8), "it is a MyLoader, not torch's DataLoader itself"),
    ([torch.randn(8, 4)], "it is a Tensor, not torch's DataLoader itself"),
    (DataLoader(Stream(), 8), "its dataset is an IterableDataset"),
    (DataLoader(NUMBERS, batch_size=None), "it has a batch_sampler or batch_size=None"),
    (
        DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 8, False)),
        "it has a batch_sampler or batch_size=None",
    ),
    (
        DataLoader(NUMBERS, 8, sampler=WeightedRandomSampler([1.0] * 64, 64)),
        "its sampler is a WeightedRandomSampler",
    ),
    (DataLoader(NUMBERS, 8, sampler=MySampler(NUMBERS)), "its sampler is a MySampler"),
    (
        DataLoader(NUMBERS, 8, sampler=RandomSampler(NUMBERS, replacement=True)),
        "its RandomSampler has replacement or num_samples",
    ),
    (
        DataLoader(NUMBERS, 8, sampler=RandomSampler(NUMBERS, num_samples=16)),
        "its RandomSampler has replacement or num_samples",
    ),
    ({"a": shuffled(8), "b": MyLoader(NUMBERS, 8)}, "it is a MyLoader"),
    ([], "[] is empty"),
]


@pytest.mark.parametrize(("passed", "message"), REFUSED)
def test_what_cannot_be_made_again_is_an_error_with_a_remedy(passed: Any, message: str) -> None:
    runner = trainer(zeus("http://127.0.0.1:1"))
    with pytest.raises(ZeusConfigError) as error:
        runner.fit(Net(), passed, validation())
    text = f"a dataloader passed straight to fit() cannot be resized: {message}"
    assert str(error.value).startswith(text)
    assert "; instead, define a train_dataloader() in Net that uses self." in str(error.value)
    assert runner.fit_loop._data_source.instance is passed


def test_a_sampler_that_names_all_its_samples_is_as_good_as_one_that_does_not() -> None:
    loader = DataLoader(NUMBERS, 8, sampler=RandomSampler(NUMBERS, num_samples=64))
    assert passed_batch_size(loader, "") == 8
