"""`Injection`: set attributes of a Lightning program, and put them back."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.lr_scaling import LRScaling, find_lr, scale_lr


@dataclass(frozen=True)
class _Change:
    """One attribute or hyperparameter that was set."""

    holder: Any
    name: str
    original: Any
    injected: Any


class Injection:
    """A batch size and learning rate set on a module, its datamodule and their hparams.

    The original values come back with `undo`, so that the next fit of the same objects, with this
    callback or another one, starts from what the program says.

    Args:
        module: The module, attached to its Trainer.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._changes: list[_Change] = []

    def set_batch_size(self, batch_size: int) -> None:
        """Set the per-device batch size."""
        self._set("batch_size", batch_size)

    def scale_lr(self, rule: LRScaling, batch_size: int, default_batch_size: int) -> None:
        """Scale the learning rate from the default global batch size to the one of this run."""
        name, lr = find_lr(self._module)
        self._set(name, scale_lr(rule, lr, batch_size, default_batch_size))

    def clean(self, checkpoint: dict[str, Any]) -> None:
        """Put the original values into a checkpoint's hyperparameters.

        Otherwise a run that starts from the weights of the last one would take the values injected
        there for the program's own, and scale a learning rate that is scaled already.
        """
        for key in ("hyper_parameters", "datamodule_hyper_parameters"):
            saved = checkpoint.get(key)
            if not isinstance(saved, MutableMapping):
                continue
            for change in self._changes:
                if saved.get(change.name) == change.injected:
                    saved[change.name] = change.original

    def undo(self) -> None:
        """Put the original values back, where nobody else has set another one meanwhile."""
        while self._changes:
            change = self._changes.pop()
            if _get(change.holder, change.name) == change.injected:
                _set(change.holder, change.name, change.original)

    def _set(self, name: str, value: float) -> None:
        for holder in list(_holders(self._module, name)):
            original = _get(holder, name)
            try:
                _set(holder, name, value)
            except AttributeError as error:
                raise ZeusConfigError(
                    f"{name} cannot be set to {value} on {type(holder).__name__} ({error}); make "
                    "it a plain attribute"
                ) from None
            self._changes.append(_Change(holder, name, original, value))


def _holders(module: LightningModule, name: str) -> Iterator[Any]:
    """The module, its datamodule and their hparams, those of them that have the name."""
    datamodule = getattr(module.trainer, "datamodule", None)
    for owner in (module, datamodule):
        for holder in (owner, getattr(owner, "hparams", None)):
            has = name in holder if isinstance(holder, MutableMapping) else hasattr(holder, name)
            if holder is not None and has:
                yield holder


def _get(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, MutableMapping) else getattr(holder, name)


def _set(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, MutableMapping):
        holder[name] = value
    else:
        setattr(holder, name, value)
