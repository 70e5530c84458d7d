"""Whether the monitored metric is logged, which is judged after a validation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from programs import Data, Net, Steps, TrainAcc, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess, free_port
from torch.utils.data import DataLoader

from zeus_lightning import ZeusConfigError
from zeus_lightning.program.metric import monitor_of


class Plain(Net):
    """Logs `val_acc` in each validation, the sanity check included, and nothing in training."""

    def __init__(self) -> None:
        super().__init__((0.9,))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.layer(batch[0]).pow(2).mean()


class LogsPerLoader(Plain):
    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.log("val_acc", (0.5, 0.9)[dataloader_idx])
        if dataloader_idx == 0:
            self.log("val_loss", 0.1, add_dataloader_idx=False)


class TwoLoaders(Data):
    def val_dataloader(self) -> Any:
        return [DataLoader(self.samples, batch_size=32) for _ in range(2)]


class ReturnsEarly(Plain):
    """Logs nothing in the sanity check."""

    def validation_step(self, batch: Any, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_acc", 0.9)


class LogsMoreLater(Plain):
    """Logs one metric in the sanity check, and others after it as the epoch ends."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", 0.1, on_step=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_acc", 0.9)


class Logs(Plain):
    """Logs these metrics in each validation; as `val_loss`, also in each of its steps."""

    def __init__(self, **metrics: float) -> None:
        super().__init__()
        self.metrics = metrics

    def validation_step(self, batch: Any, index: int) -> None:
        for name, value in self.metrics.items():
            self.log(name, value, on_step=name == "val_loss", on_epoch=True)


def logs_two() -> Logs:
    return Logs(val_acc=0.9, val_loss=0.1)


def logs_elbo() -> Logs:
    return Logs(elbo=-0.5)


@pytest.mark.parametrize(
    ("module", "data", "monitor"),
    [
        (ReturnsEarly, Data, "val_acc"),
        (LogsMoreLater, Data, "val_acc"),
        (LogsPerLoader, TwoLoaders, "val_acc/dataloader_idx_1"),
    ],
)
def test_a_metric_may_be_missing_in_the_sanity_check(
    service: ServiceProcess,
    module: type[LightningModule],
    data: type[Data],
    monitor: str,
) -> None:
    callback = zeus(service.url, monitor=monitor)
    trainer(callback, max_epochs=1).fit(module(), data())
    assert callback.outcome == "converged"


@pytest.mark.parametrize(
    ("module", "data", "monitor", "logged"),
    [
        (LogsPerLoader, TwoLoaders, "val_acc", ".*'val_acc/dataloader_idx_0', .*"),
        (Net, Data, "accuracy", r"\['train_loss', 'val_acc'\]; .* in validation_step\(\)$"),
    ],
)
def test_a_metric_that_the_first_validation_does_not_log_is_an_error(
    service: ServiceProcess,
    module: type[LightningModule],
    data: type[Data],
    monitor: str,
    logged: str,
) -> None:
    callback, steps = zeus(service.url, monitor=monitor), Steps()
    message = f"monitor is '{monitor}', but the epoch metrics logged are {logged}"
    with pytest.raises(ZeusConfigError, match=message):
        trainer(callback, steps).fit(module(), data())
    assert steps.count == 8
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        ("val_acc", r"no epoch metric was logged; call self\.log\('val_acc', .*on_epoch=True\)"),
        (
            None,
            "no metric to monitor: no epoch metric was logged; call self.log.*"
            r"on_epoch=True\), and pass monitor=NAME to ZeusBSOCallback$",
        ),
    ],
)
def test_if_nothing_is_logged_the_error_says_how_to_log_it(
    service: ServiceProcess, monitor: str | None, message: str
) -> None:
    with pytest.raises(ZeusConfigError, match=message):
        trainer(zeus(service.url, monitor=monitor)).fit(Logs(), Data())


@pytest.mark.parametrize(
    ("callbacks", "arguments", "monitored"),
    [
        ([EarlyStopping("val_loss")], {}, ("val_loss", "min")),
        ([ModelCheckpoint(monitor="val_acc", mode="max")], {}, ("val_acc", "max")),
        (
            [ModelCheckpoint(monitor="val_acc", mode="max"), EarlyStopping("val_loss")],
            {},
            ("val_loss", "min"),
        ),
        (
            [
                ModelCheckpoint(monitor="epoch", mode="max"),
                ModelCheckpoint(monitor="val_acc", mode="max"),
            ],
            {},
            ("val_acc", "max"),
        ),
        ([EarlyStopping("val_loss")], {"monitor": "val_acc"}, ("val_acc", "max")),
        ([EarlyStopping("val_acc", mode="max")], {"mode": "min"}, ("val_acc", "min")),
        ([], {"monitor": "val_loss"}, ("val_loss", "min")),  # by its name
    ],
)
def test_metric_and_mode_are_those_of_the_trainer_unless_they_are_given(
    callbacks: list[Any], arguments: dict[str, Any], monitored: tuple[str, str]
) -> None:
    runner = trainer(*callbacks, enable_checkpointing=True)
    given = {"monitor": None, "mode": None} | arguments
    assert monitor_of(runner, **given) == monitored


def test_a_mode_of_the_trainer_that_the_name_contradicts_is_a_warning(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, monitor=None, target_metric=None)
    with pytest.warns(UserWarning, match="'val_acc' looks like a metric that should rise"):
        trainer(callback, EarlyStopping("val_acc"), max_epochs=1).fit(logs_two(), Data())


@pytest.mark.parametrize("sanity", [2, 0])
def test_metrics_to_choose_from_are_listed_if_the_program_names_none(
    service: ServiceProcess, sanity: int
) -> None:
    job, steps = new_job(), Steps()
    callback = zeus(service.url, job_id=job, monitor=None)
    with pytest.raises(
        ZeusConfigError, match=r"pass monitor='val_acc' or 'val_loss' to ZeusBSOCallback$"
    ):
        trainer(callback, steps, num_sanity_val_steps=sanity).fit(logs_two(), Data())
    assert steps.count == (0 if sanity else 8)
    assert outcomes(service.url, job) == []


def test_the_mode_is_asked_for_with_the_metric_if_no_name_shows_it(service: ServiceProcess) -> None:
    message = r"pass monitor='elbo' \(with mode='min' or 'max'\) to ZeusBSOCallback"
    with pytest.raises(ZeusConfigError, match=message):
        trainer(zeus(service.url, monitor=None)).fit(logs_elbo(), Data())


def test_a_mode_that_nothing_shows_is_an_error_unless_the_job_has_one(
    service: ServiceProcess,
) -> None:
    job, steps = new_job(), Steps()
    untold = {"job_id": job, "monitor": "elbo", "target_metric": -1.0}
    message = "'elbo' does not show whether the metric should rise or fall; pass mode="
    with pytest.raises(ZeusConfigError, match=message):
        trainer(zeus(service.url, **untold), steps).fit(logs_elbo(), Data())
    assert (steps.count, outcomes(service.url, job)) == (0, [])
    trainer(zeus(service.url, **untold, mode="max")).fit(logs_elbo(), Data())
    trainer(zeus(service.url, **untold)).fit(logs_elbo(), Data())
    assert outcomes(service.url, job) == ["converged", "converged"]


def test_without_the_service_a_target_in_an_unknown_mode_is_not_looked_for() -> None:
    steps = Steps()
    callback = zeus(
        f"http://127.0.0.1:{free_port()}",
        monitor="elbo",
        target_metric=-0.5,
        require_service=False,
    )
    with pytest.warns(UserWarning, match=r"pass mode=\.\.\. to stop at the target"):
        trainer(callback, steps, max_epochs=3).fit(logs_elbo(), Data())
    assert steps.count == 3 * 8


class LogsBatches(Net):
    """Logs `train_acc` for each batch: 0.5, but 1 for the last of an epoch."""

    on_epoch = False

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        value = float(index == 7) / 2 + 0.5
        self.log("train_acc", value, on_step=True, on_epoch=self.on_epoch)
        return super().training_step(batch, index)


class LogsOnlyBatches(Plain):
    """Logs as a training step does by default, and nothing else."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.log("train_acc", 0.5)
        return super().training_step(batch, index)


class LogsBatchesAndEpochs(LogsBatches):
    on_epoch = True


@pytest.mark.parametrize(
    ("monitor", "offered"),
    [
        (None, "pass monitor='val_acc' to ZeusBSOCallback$"),
        (
            "accuracy",
            r"the epoch metrics logged are \['train_loss', 'val_acc'\]; pass one of",
        ),
    ],
)
def test_a_metric_of_single_batches_is_not_offered(
    service: ServiceProcess, monitor: str | None, offered: str
) -> None:
    runner = trainer(zeus(service.url, monitor=monitor), num_sanity_val_steps=0)
    with pytest.raises(ZeusConfigError, match=offered):
        runner.fit(LogsBatches(), Data())


@pytest.mark.parametrize(
    ("monitor", "named"),
    [
        (None, "; logged for each batch: 'train_acc'$"),
        ("accuracy", r"in training_step\(\), since there is no validation$"),
    ],
)
def test_if_only_single_batches_are_logged_the_error_says_how_to_log_epochs(
    service: ServiceProcess, monitor: str | None, named: str
) -> None:
    runner = trainer(zeus(service.url, monitor=monitor), limit_val_batches=0)
    with pytest.raises(ZeusConfigError, match=f"no epoch metric was logged; .*{named}"):
        runner.fit(LogsOnlyBatches(), Data())


class LogsInBoth(LogsBatchesAndEpochs):
    """Logs `train_acc` in validation as well, for each batch and for the epoch."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("train_acc", 0.75, on_step=True, on_epoch=True)


@pytest.mark.parametrize(
    ("module", "monitor", "limit"),
    [
        (LogsBatches, "train_acc", {}),
        (LogsBatches, "train_acc", {"val_check_interval": 4}),
        (LogsBatchesAndEpochs, "train_acc_step", {"limit_val_batches": 0}),
        (LogsInBoth, "train_acc_step", {}),
    ],
)
def test_a_metric_of_one_batch_is_an_error_as_the_epoch_ends(
    service: ServiceProcess, module: type[Net], monitor: str, limit: dict[str, Any]
) -> None:
    callback, steps = zeus(service.url, monitor=monitor), Steps()
    remedy = r"is the last batch's; pass on_step=False, on_epoch=True to self.log\('train_acc'"
    with pytest.raises(ZeusConfigError, match=remedy):
        trainer(callback, steps, **limit).fit(module(), Data())
    assert steps.count == 8
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]


@pytest.mark.parametrize("monitor", ["train_acc", "train_acc_epoch"])
def test_a_metric_of_batches_and_epochs_is_reported_as_the_epochs_mean(
    service: ServiceProcess, monitor: str
) -> None:
    callback = zeus(service.url, monitor=monitor, raise_on_failure=False)
    trainer(callback, max_epochs=2, val_check_interval=4).fit(LogsBatchesAndEpochs(), Data())
    assert callback.last_report.metric == 0.5625
    assert (callback.last_report.sequence, callback.outcome) == (2, "not_converged")


def test_an_epochs_mean_is_reported_with_its_own_epoch(service: ServiceProcess) -> None:
    callback = zeus(service.url, monitor="train_acc")
    trainer(callback, max_epochs=4, check_val_every_n_epoch=2).fit(TrainAcc(), Data())
    report = callback.last_report
    assert (report.sequence, report.epoch) == (2, 3)
    assert report.metric == pytest.approx(0.9)


@pytest.mark.parametrize("on_epoch", [False, True])
def test_validations_value_is_reported_if_training_logs_the_metric_as_well(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, on_epoch: bool
) -> None:
    monkeypatch.setattr(LogsInBoth, "on_epoch", on_epoch)
    callback = zeus(service.url, monitor="train_acc", raise_on_failure=False)
    trainer(callback, max_epochs=1, val_check_interval=4).fit(LogsInBoth(), Data())
    assert (callback.last_report.metric, callback.last_report.sequence) == (0.75, 2)
