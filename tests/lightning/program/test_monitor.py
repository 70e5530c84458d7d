"""The value of the monitored metric, as it is printed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import Data, Net, TrainAcc, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.monitor import monitored


def logged(**metrics: torch.Tensor) -> Any:
    """A Trainer as far as the metric is concerned."""
    return SimpleNamespace(callback_metrics=metrics, num_val_batches=[1], precision="32-true")


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        (torch.tensor(0.95), 0.95),  # 0.949999988... in single precision
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(3), 3.0),
        (torch.tensor(float("inf")), float("inf")),
    ],
)
def test_it_is_the_number_that_is_printed(metric: torch.Tensor, value: float) -> None:
    assert monitored(logged(val_acc=metric), "val_acc", target=0.8) == value


def test_a_metric_that_is_not_logged_is_an_error_that_lists_those_that_are() -> None:
    trainer = logged(val_loss=torch.tensor(1.0))
    with pytest.raises(ZeusConfigError, match=r"monitor is 'val_acc'.*\['val_loss'\]"):
        monitored(trainer, "val_acc", target=0.8)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "16-true"])
@pytest.mark.parametrize(("metric", "reached"), [(0.95, True), (0.94, False)])
def test_a_metric_in_half_precision_reaches_the_target_that_it_is_nearest_to(
    service: ServiceProcess, precision: Any, metric: float, reached: bool
) -> None:
    half = torch.bfloat16 if "b" in precision else torch.float16

    class Half(Net):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_acc", torch.tensor(metric, dtype=half))

    callback = zeus(service.url, target_metric=0.95, raise_on_failure=False)
    trainer(callback, precision=precision, max_epochs=1).fit(Half(), Data())
    assert callback.outcome == ("converged" if reached else "not_converged")


def test_in_single_precision_a_metric_just_below_the_target_has_not_reached_it(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url, target_metric=0.95, raise_on_failure=False)
    trainer(callback, max_epochs=1).fit(Net((243 / 256,)), Data())
    assert callback.outcome == "not_converged"


@pytest.mark.parametrize("val_check_interval", [1.0, 0.5])
def test_a_metric_of_training_beside_a_validation_loop_is_reported_as_its_epochs_end(
    service: ServiceProcess, val_check_interval: float
) -> None:
    callback = zeus(service.url, monitor="train_acc")
    runner = trainer(callback, val_check_interval=val_check_interval)
    runner.fit(TrainAcc((0.3, 0.4, 0.85)), Data())
    assert callback.outcome == "converged"
    assert (callback.last_report.sequence, callback.last_report.epoch) == (3, 3)
    assert callback.last_report.metric == pytest.approx(0.85)
    assert runner.current_epoch == 3
