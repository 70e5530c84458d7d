"""Training data with fewer samples than a batch, or with none."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from programs import Data, Net, Steps, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

import zeus_lightning
from zeus_lightning import ZeusBSOCallback, ZeusConfigError, ZeusTrialFailed


class EmptyStream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


class DropsLast(Data):
    """Drops the last batch if it is not full; `kind` says how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def loader(self, dataset: Any) -> Any:
        return DataLoader(dataset, batch_size=self.batch_size, drop_last=True)

    def train_dataloader(self) -> Any:
        if self.kind == "sampler":
            drops = BatchSampler(range(64), self.batch_size, drop_last=True)
            return DataLoader(self.samples, batch_sampler=drops)
        return self.loader([] if self.kind == "empty" else EmptyStream())


def test_a_batch_size_larger_than_the_data_of_a_loader_that_drops_the_last_batch_fails(
    service: ServiceProcess,
) -> None:
    sizes = {"job_id": new_job(), "batch_sizes": [64, 128], "default_batch_size": 64}
    trainer(zeus(service.url, **sizes)).fit(Net((0.9,)), DropsLast("sampler"))
    steps = Steps()
    with pytest.raises(ZeusTrialFailed, match=r"DropsLast has no full batch of 128 .* was trained"):
        trainer(zeus(service.url, **sizes), steps).fit(Net(), DropsLast("sampler"))
    assert steps.count == 0
    assert outcomes(service.url, sizes["job_id"]) == ["converged", "not_converged"]


@pytest.mark.parametrize("kind", ["empty", "empty stream"])
def test_a_run_without_any_data_is_an_error_that_teaches_nothing(
    service: ServiceProcess, kind: str
) -> None:
    callback = zeus(service.url)
    with pytest.raises(
        ZeusConfigError, match=r"DropsLast has no full batch .* nothing was trained"
    ):
        trainer(callback).fit(Net(), DropsLast(kind))
    assert outcomes(service.url, callback.job.job_id) == ["errored"]


class Stops(Callback):
    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        trainer.should_stop = True


def test_a_run_without_a_batch_by_the_users_own_wish_is_no_error(service: ServiceProcess) -> None:
    callback = zeus(service.url)
    trainer(callback, Stops()).fit(Net(), Data())
    assert callback.outcome == "interrupted"
    callback = zeus(service.url)
    trainer(callback, limit_train_batches=0).fit(Net(), Data())
    assert callback.outcome == "withdrawn"


REFUSED = [  # of 64 samples
    ({"val_check_interval": 4}, "val_check_interval=4 exceeds the 2 batches of an epoch"),
    (
        {"limit_train_batches": 0.3},
        "limit_train_batches=0.3 is less than one batch (an epoch has 2)",
    ),
]


@pytest.mark.parametrize(("arguments", "why"), REFUSED)
def test_a_batch_size_whose_epochs_are_too_short_for_lightning_fails(
    service: ServiceProcess, arguments: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the default batch size, it is an error of the program."""
    refuses = pytest.raises((ValueError, MisconfigurationException), match=r"val_check|limit_train")
    sizes = {"job_id": new_job(), "batch_sizes": [8, 32]}
    trainer(zeus(service.url, default_batch_size=8, **sizes), **arguments).fit(Net((0.9,)), Data())
    with refuses:
        trainer(zeus(service.url, **sizes), **arguments).fit(Net((0.9,)), Data())
    assert f"batch size 32 ended as not_converged: {why}" in caplog.text
    as_default = zeus(service.url, batch_sizes=[8, 32], default_batch_size=32)
    with refuses:
        trainer(as_default, **arguments).fit(Net(), Data())
    assert not as_default.failed_by_error
    assert outcomes(service.url, as_default.job.job_id) == ["errored"]


def test_fit_tries_again_after_such_a_batch_size(service: ServiceProcess) -> None:
    job, sizes = new_job(), {"batch_sizes": [8, 128], "default_batch_size": 8}
    callbacks: list[ZeusBSOCallback] = []

    def make_trainer() -> Trainer:
        callbacks.append(zeus(service.url, job_id=job, **sizes))
        return trainer(callbacks[-1], val_check_interval=4)

    for _ in range(2):
        zeus_lightning.fit(make_trainer, lambda: Net((0.9,)), Data)
    assert [each.trial.batch_size for each in callbacks] == [8, 128, 8]
