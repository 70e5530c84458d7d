"""`Injection`: set attributes of a Lightning program, and put them back."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_setattr

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.lr_scaling import LRScaling, find_lr, scale_lr


class Injection:
    """A batch size and learning rate set on a module, its datamodule and their hparams.

    The original values come back with `undo`, so that the next fit of the same objects, with this
    callback or another one, starts from what the program says.

    Args:
        module: The module, attached to its Trainer.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._originals: dict[str, Any] = {}

    def set_batch_size(self, batch_size: int) -> None:
        """Set the per-device batch size."""
        self._set("batch_size", batch_size)

    def scale_lr(self, rule: LRScaling, batch_size: int, default_batch_size: int) -> None:
        """Scale the learning rate from the default global batch size to the one of this run."""
        name, lr = find_lr(self._module)
        self._set(name, scale_lr(rule, lr, batch_size, default_batch_size))

    def undo(self) -> None:
        """Put the original values back."""
        while self._originals:
            lightning_setattr(self._module, *self._originals.popitem())

    def _set(self, name: str, value: float) -> None:
        original = lightning_getattr(self._module, name)
        try:
            lightning_setattr(self._module, name, value)
        except AttributeError as error:
            raise ZeusConfigError(
                f"{name} cannot be set to {value} on {type(self._module).__name__} or its "
                f"datamodule ({error}); make it a plain attribute"
            ) from None
        self._originals.setdefault(name, original)
