"""The value of the monitored metric, as it is printed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.monitor import monitored


def logged(sanity_checking: bool = False, **metrics: torch.Tensor) -> Any:
    """A Trainer as far as the metric is concerned."""
    return SimpleNamespace(callback_metrics=metrics, sanity_checking=sanity_checking)


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
    assert monitored(logged(val_acc=metric), "val_acc") == value


@pytest.mark.parametrize("sanity_checking", [True, False])
def test_a_metric_that_is_not_logged_is_an_error_that_lists_those_that_are(
    sanity_checking: bool,
) -> None:
    trainer = logged(sanity_checking, val_loss=torch.tensor(1.0))
    with pytest.raises(ZeusConfigError, match=r"monitor is 'val_acc'.*\['val_loss'\]") as error:
        monitored(trainer, "val_acc")
    assert ("num_sanity_val_steps=0" in str(error.value)) is sanity_checking
