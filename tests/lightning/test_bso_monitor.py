"""Whether the monitored metric is logged, which is judged after a validation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.demos.boring_classes import BoringModel
from programs import Data, Net, Steps, outcomes, trainer, zeus
from service_process import ServiceProcess
from torch.utils.data import DataLoader

from zeus_lightning import ZeusConfigError


class Plain(LightningModule):
    """Logs `val_acc` in each validation, the sanity check included."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_acc", 0.9)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class LogsPerLoader(Plain):
    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.log("val_acc", (0.9, 0.5)[dataloader_idx])
        if dataloader_idx == 0:
            self.log("val_loss", 0.1, add_dataloader_idx=False)


class TwoLoaders(Data):
    def val_dataloader(self) -> Any:
        return [DataLoader(self.samples, batch_size=32) for _ in range(2)]


@pytest.mark.parametrize(("loader", "reached"), [(0, True), (1, False)])
def test_a_metric_of_one_of_several_validation_dataloaders_is_monitored(
    service: ServiceProcess, loader: int, reached: bool
) -> None:
    monitor = f"val_acc/dataloader_idx_{loader}"
    callback = zeus(service.url, monitor=monitor, raise_on_failure=False)
    trainer(callback, max_epochs=1).fit(LogsPerLoader(), TwoLoaders())
    assert callback.outcome == ("converged" if reached else "not_converged")


@pytest.mark.parametrize(("data", "loader", "loaders"), [(Data, 0, 1), (TwoLoaders, 2, 2)])
def test_a_dataloader_that_is_not_there_is_a_warning_and_after_a_validation_an_error(
    service: ServiceProcess, data: type[Data], loader: int, loaders: int
) -> None:
    callback, steps = zeus(service.url, monitor=f"val_acc/dataloader_idx_{loader}"), Steps()
    told = f"the number of validation dataloaders is {loaders}: Lightning counts them from 0"
    with (
        pytest.warns(UserWarning, match=told),
        pytest.raises(ZeusConfigError, match=f"metrics logged so far are .*; {told}"),
    ):
        trainer(callback, steps).fit(LogsPerLoader(), data())
    assert steps.count == 8
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]


class ReturnsEarly(Plain):
    def validation_step(self, batch: Any, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_acc", 0.9)


class ReturnsEarlyAtTheEnd(Plain):
    """Logs a name that its code does not contain, beside one that each validation logs."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", 0.1)

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            return
        for name in ("acc", "f1"):
            self.log(f"val_{name}", 0.9)


class SkipsTheFirstEpoch(Plain):
    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", 0.1)
        if self.trainer.global_step > 0:
            self.log("val_acc", 0.9)


class LogsMadeNames(Plain):
    """Logs names that no code contains, one of them after the sanity check only."""

    def validation_step(self, batch: Any, index: int) -> None:
        for name in ("loss",) if self.trainer.global_step == 0 else ("loss", "acc"):
            self.log(f"val_{name}", 0.9)


@pytest.mark.parametrize(
    "module", [ReturnsEarly, ReturnsEarlyAtTheEnd, SkipsTheFirstEpoch, LogsMadeNames]
)
def test_a_module_may_skip_the_metric_in_the_sanity_check(
    service: ServiceProcess, module: type[LightningModule], recwarn: pytest.WarningsRecorder
) -> None:
    callback = zeus(service.url)
    trainer(callback).fit(module(), Data())
    assert callback.outcome == "converged"
    assert not [each for each in recwarn if "zeus" in str(each.message)]


@pytest.mark.parametrize(
    ("module", "data", "monitor", "said"),
    [
        (Plain, Data, "accuracy", True),
        (Plain, Data, "val_acc", False),
        (ReturnsEarly, Data, "val_acc", False),  # logs nothing, so nothing is missing among it
        (LogsPerLoader, TwoLoaders, "val_acc/dataloader_idx_1", False),
    ],
)
def test_what_the_sanity_check_has_not_logged_beside_other_metrics_is_a_line_in_the_log(
    service: ServiceProcess,
    caplog: pytest.LogCaptureFixture,
    module: type[LightningModule],
    data: type[Data],
    monitor: str,
    said: bool,
) -> None:
    callback = zeus(service.url, monitor=monitor, raise_on_failure=False)
    with caplog.at_level("INFO"), suppress(ZeusConfigError):
        trainer(callback, max_epochs=1).fit(module(), data())
    line = f"sanity check has logged ['val_acc'], but not monitor={monitor!r}; unless the first"
    assert (line in caplog.text) is said


class LogsNothing(BoringModel):
    """Lightning's own, on this test's data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def validation_step(self, batch: Any, index: int) -> Any:
        return super().validation_step(batch[0], index)

    def training_step(self, batch: Any, index: int) -> Any:
        return super().training_step(batch[0], index)


@pytest.mark.parametrize(
    ("module", "data", "monitor", "logged"),
    [
        (Plain, Data, "accuracy", r"\['val_acc'\]"),
        (ReturnsEarly, Data, "val_ac", r"\['val_acc'\]"),
        (LogsPerLoader, TwoLoaders, "val_acc", ".'val_acc/dataloader_idx_0', "),
        (Net, Data, "accuracy", ".'train_loss', 'val_acc'"),
        (LogsNothing, Data, "val_acc", r"\[\]"),
    ],
)
def test_a_metric_that_the_first_validation_does_not_log_is_an_error_there(
    service: ServiceProcess,
    module: type[LightningModule],
    data: type[Data],
    monitor: str,
    logged: str,
) -> None:
    callback, steps = zeus(service.url, monitor=monitor), Steps()
    with pytest.raises(ZeusConfigError, match=f"monitor is '{monitor}', but the .* are {logged}"):
        trainer(callback, steps).fit(module(), data())
    assert steps.count == 8
    assert outcomes(service.url, callback.job.job_id) == ["withdrawn"]
