"""Read the metric that a job monitors."""

from __future__ import annotations

import numpy as np
import torch
from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError


def monitored(trainer: Trainer, monitor: str) -> float:
    """The latest value of a metric, as it is printed.

    Raises:
        ZeusConfigError: The program does not log it.
    """
    metric = trainer.callback_metrics.get(monitor)
    if metric is None:
        hint = (
            "; a metric logged only in training needs Trainer(num_sanity_val_steps=0)"
            if trainer.sanity_checking
            else ""
        )
        raise ZeusConfigError(
            f"monitor is {monitor!r}, but the metrics logged so far are "
            f"{sorted(trainer.callback_metrics)}; log it with self.log(), or monitor one of "
            f"these{hint}"
        )
    # 0.95 in single precision is 0.94999999, which would miss a target of 0.95
    single = metric.dtype == torch.float32
    return float(str(np.float32(metric.item()))) if single else float(metric)
