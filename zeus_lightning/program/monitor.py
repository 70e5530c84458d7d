"""Read the metric that a job monitors."""

from __future__ import annotations

import numpy as np
import torch
from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError


def monitored(trainer: Trainer, monitor: str) -> float:
    """The latest value of a metric, rounded to its shortest float32 representation.

    Raises:
        ZeusConfigError: The program does not log it.
    """
    metric = trainer.callback_metrics.get(monitor)
    if metric is None:
        message = (
            f"monitor is {monitor!r}, but the metrics logged so far are "
            f"{sorted(trainer.callback_metrics)}; log it with self.log(), or monitor one of these"
        )
        if trainer.sanity_checking:
            message += "; a metric logged only in training needs Trainer(num_sanity_val_steps=0)"
        raise ZeusConfigError(message)
    # 0.95 in single precision is 0.94999999, which would miss a target of 0.95
    single = metric.dtype == torch.float32
    return float(str(np.float32(metric.item()))) if single else float(metric)
