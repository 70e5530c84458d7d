"""`Injection`: set the batch size and learning rate of a Lightning program, and restore them."""

import math
import warnings
from collections.abc import Iterator, MutableMapping
from copy import copy
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program import lr_scaling


class _Change(NamedTuple):
    holder: Any
    name: str
    original: Any
    injected: Any


class LearningRate(NamedTuple):
    """A module's learning rate: its attribute, the program's own value, and the scaled one."""

    name: str
    original: float
    injected: float


class Injection:
    """A batch size and learning rate set on a module, its datamodule and their hparams.

    `undo` restores the original values, so that the next fit of the same objects starts from the
    program's own. The module must be attached to its Trainer.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._changes: list[_Change] = []
        self.lr: LearningRate | None = None

    def set_batch_size(self, name: str, batch_size: int) -> None:
        """Set the per-device batch size, an attribute of this name."""
        self._set(name, batch_size)

    def scale_lr(self, factor: float) -> None:
        """Scale the module's learning rate, if it has one."""
        found = lr_scaling.find_lr(self._module)
        if found is not None:
            name, lr = found
            self.lr = LearningRate(name, lr, lr * factor)
            self._set(name, lr * factor)

    def scale_optimizers(self, factor: float) -> bool:
        """Scale the optimizers' rates, unless they were built from the scaled learning rate.

        Returns:
            Whether they were scaled here.
        """
        trainer = self._module.trainer
        rates = lr_scaling.base_rates(trainer.optimizers)
        if self.lr is not None:
            if any(math.isclose(rate, self.lr.injected) for rate in rates):
                return False
            try:
                unscaled = lr_scaling.rates_with(self._module, self.lr.name, self.lr.original)
            except Exception as error:  # noqa: BLE001 - of the user's code, which has worked once
                warnings.warn(
                    "zeus: whether the optimizers follow the scaled learning rate is unknown, for "
                    f"configure_optimizers() fails the second time ({type(error).__name__}: "
                    f"{error}); their rates stay as they are",
                    stacklevel=2,
                )
                return False
            if unscaled != rates:
                return False  # a multiple of it
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        lr_scaling.scale_groups(trainer.optimizers, schedulers, factor)
        return True

    def restore_in(self, checkpoint: dict[str, Any]) -> None:
        """Restore the original values in a checkpoint's hyperparameters.

        Otherwise a module that is loaded from it would have the injected values as its own, and a
        run would scale a learning rate that is already scaled.
        """
        for key in ("hyper_parameters", "datamodule_hyper_parameters"):
            for change in self._changes if key in checkpoint else ():
                checkpoint[key] = _replaced(checkpoint[key], change)

    def undo(self) -> None:
        """Restore the original values; one that has been changed since stays."""
        while self._changes:
            change = self._changes.pop()
            name = change.name.rpartition(".")[2]
            if get_from(change.holder, name) == change.injected:
                _set(change.holder, name, change.original)

    def _set(self, name: str, value: float) -> None:
        last = name.rpartition(".")[2]
        for holder in list(holders(self._module, name)):
            original = get_from(holder, last)
            try:
                _set(holder, last, value)
            except AttributeError as error:
                text = f"{name} cannot be set to {value} on {type(holder).__name__} ({error})"
                raise ZeusConfigError(f"{text}; make it a plain attribute") from None
            self._changes.append(_Change(holder, name, original, value))


def holders(module: LightningModule, name: str) -> Iterator[Any]:
    """Yield what has a value of a name: the module, its hparams, its datamodule, and their hparams.

    For a name with dots, such as `data.batch_size`, yield what has its last part.
    """
    datamodule = getattr(module.trainer, "datamodule", None)
    *path, last = name.split(".")
    for owner in (module, datamodule):
        for root in (owner, getattr(owner, "hparams", None)):
            holder = root
            for part in path:
                holder = get_from(holder, part) if _has(holder, part) else None
            if _has(holder, last):
                yield holder


def _replaced(saved: Any, change: _Change, depth: int = 0) -> Any:
    """Hyperparameters with the original value, without changing those that the program has."""
    part = change.name.split(".")[depth]
    if not isinstance(saved, MutableMapping) or part not in saved:
        return saved
    if depth == change.name.count("."):
        value = change.original if saved[part] == change.injected else saved[part]
    else:
        value = _replaced(saved[part], change, depth + 1)
    copied = copy(saved)
    copied[part] = value
    return copied


def _has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, MutableMapping) else hasattr(holder, name)


def get_from(holder: Any, name: str) -> Any:
    """The value of a name, of a mapping or of an object."""
    return holder[name] if isinstance(holder, MutableMapping) else getattr(holder, name)


def _set(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, MutableMapping):
        holder[name] = value
    else:
        setattr(holder, name, value)
