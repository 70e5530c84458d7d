"""Scale a module's learning rate with its batch size."""

import math
from numbers import Real
from typing import Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_hasattr

from zeus_lightning.errors import ZeusConfigError

LRScaling = Literal["linear", "sqrt"]


def scale_lr(rule: LRScaling, lr: float, batch_size: int, default_batch_size: int) -> float:
    """Learning rate for a batch size, from the one tuned for the default size, both global.

    `linear` (Goyal et al., 2017, section 2.1) is meant for SGD; `sqrt` (Krizhevsky, 2014) is often
    better for Adam and its variants.
    """
    ratio = batch_size / default_batch_size
    return lr * (ratio if rule == "linear" else math.sqrt(ratio))


def find_lr(module: LightningModule) -> tuple[str, float]:
    """Name and value of the learning rate: on the module, its hparams or the datamodule."""
    for name in ("lr", "learning_rate"):
        if lightning_hasattr(module, name):
            lr = lightning_getattr(module, name)
            if isinstance(lr, bool) or not isinstance(lr, Real) or not float(lr) > 0:
                raise ZeusConfigError(
                    f"{type(module).__name__}.{name} is {lr!r}; lr_scaling needs a positive number"
                )
            return name, float(str(lr))  # as it is printed, also numpy's in single precision
    raise ZeusConfigError(
        f"lr_scaling is set, but {type(module).__name__} has no attribute 'lr' or 'learning_rate'; "
        "add one and use it in configure_optimizers(), or leave lr_scaling out"
    )
