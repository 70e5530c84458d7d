"""`Injection`: set the batch size and learning rate of a Lightning program, and restore them."""

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.lr_scaling import LRScaling, find_lr, scale_lr


class _Change(NamedTuple):
    holder: Any
    name: str
    original: Any
    injected: Any


class Injection:
    """A batch size and learning rate set on a module, its datamodule and their hparams.

    `undo` restores the original values, so that the next fit of the same objects starts from the
    program's own. The module must be attached to its Trainer.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._changes: list[_Change] = []

    def set_batch_size(self, batch_size: int) -> None:
        """Set the per-device batch size."""
        self._set("batch_size", batch_size)

    def scale_lr(self, rule: LRScaling, batch_size: int, default_batch_size: int) -> None:
        """Scale the learning rate from the default batch size to this run's, both global."""
        name, lr = find_lr(self._module)
        self._set(name, scale_lr(rule, lr, batch_size, default_batch_size))

    def restore_in(self, checkpoint: dict[str, Any]) -> None:
        """Restore the original values in a checkpoint's hyperparameters.

        Otherwise a module that is loaded from it would have the injected values as its own, and a
        run would scale a learning rate that is already scaled.
        """
        for key in ("hyper_parameters", "datamodule_hyper_parameters"):
            saved = checkpoint.get(key) or {}
            for change in self._changes:
                if saved.get(change.name) == change.injected:
                    saved[change.name] = change.original

    def undo(self) -> None:
        """Restore the original values; one that has been changed since stays."""
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
                text = f"{name} cannot be set to {value} on {type(holder).__name__} ({error})"
                raise ZeusConfigError(f"{text}; make it a plain attribute") from None
            self._changes.append(_Change(holder, name, original, value))


def _holders(module: LightningModule, name: str) -> Iterator[Any]:
    """Yield those of the module, its datamodule and their hparams that have a value of a name."""
    datamodule = getattr(module.trainer, "datamodule", None)
    for owner in (module, datamodule):
        for holder in (owner, getattr(owner, "hparams", None)):
            has = name in holder if isinstance(holder, MutableMapping) else hasattr(holder, name)
            if has:
                yield holder


def _get(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, MutableMapping) else getattr(holder, name)


def _set(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, MutableMapping):
        holder[name] = value
    else:
        setattr(holder, name, value)
