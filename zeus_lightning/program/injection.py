"""`Injection`: set the batch size of a Lightning program, and restore its own."""

from collections.abc import MutableMapping
from copy import copy
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import get_from, holders, is_size, set_on
from zeus_lightning.program.internals import passed_source
from zeus_lightning.program.passed_loaders import resized


class _Change(NamedTuple):
    holder: Any
    name: str
    original: Any
    injected: Any


class Injection:
    """A batch size set on a module, its datamodule, their hparams, and dataloaders passed to `fit`.

    `undo` restores the original values, so that the next fit of the same objects starts from the
    program's own. The module must be attached to its Trainer.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._changes: list[_Change] = []

    def set_batch_size(self, name: str, batch_size: int) -> None:
        """Set the per-device batch size: the attribute `name`, nested if it has dots.

        A value that is neither a batch size nor None stays: it may be a method of the module.

        Raises:
            ZeusConfigError: A holder's value cannot be set, and is not a property that follows
                another one.
        """
        last = name.rpartition(".")[2]
        refused, unchanged = [], len(self._changes)
        for holder in list(holders(self._module, name)):
            original = get_from(holder, last)
            if original is not None and not is_size(original):
                continue
            try:
                self._set(holder, name, original, batch_size)
            except ZeusConfigError as error:
                refused.append((holder, error))
        if (source := passed_source(self._module.trainer)) is not None:
            passed = source.instance
            self._set(source, "instance", passed, resized(passed, batch_size))
        for holder, refusal in refused:
            if len(self._changes) == unchanged or get_from(holder, last) != batch_size:
                raise refusal

    def restore_in(self, checkpoint: dict[str, Any]) -> None:
        """Restore the original values in a checkpoint's hyperparameters.

        Otherwise a module that is loaded from it would have the injected batch size as its own.
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
                set_on(change.holder, name, change.original)

    def _set(self, holder: Any, name: str, original: Any, value: Any) -> None:
        last = name.rpartition(".")[2]
        try:
            set_on(holder, last, value)
        except Exception as error:
            text = f"{name} cannot be set to {value} on {type(holder).__name__}"
            cause = " ".join(str(error).split())  # pydantic's has several lines
            raise ZeusConfigError(
                f"{text} ({cause}); make it a plain attribute that accepts any size"
            ) from error
        self._changes.append(_Change(holder, name, original, value))


def _replaced(saved: Any, change: _Change, depth: int = 0) -> Any:
    """A copy of saved hyperparameters with the original value."""
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
