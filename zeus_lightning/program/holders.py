"""Where a program has a value of a name: on its module, its datamodule, or their hparams."""

from collections.abc import Iterator, MutableMapping
from typing import Any

from lightning.pytorch import LightningModule


def holders(module: LightningModule, name: str) -> Iterator[Any]:
    """Yield what has a value of a name: the module, its hparams, its datamodule, and their hparams.

    For a name with dots, such as `data.batch_size`, yield what has its last part. The module must
    be attached to its Trainer.
    """
    for owner in (module, getattr(module.trainer, "datamodule", None)):
        yield from holders_in(owner, name)


def holders_in(owner: Any, name: str) -> Iterator[Any]:
    """Yield what has a value of a name: a module or datamodule, and its hparams after it."""
    *path, last = name.split(".")
    for root in (owner, getattr(owner, "hparams", None)):
        holder = root
        for part in path:
            holder = get_from(holder, part) if _has(holder, part) else None
        if _has(holder, last):
            yield holder


def get_from(holder: Any, name: str) -> Any:
    """The value of a name, of a mapping or of an object."""
    return holder[name] if isinstance(holder, MutableMapping) else getattr(holder, name)


def set_on(holder: Any, name: str, value: Any) -> None:
    """Set the value of a name, of a mapping or of an object."""
    if isinstance(holder, MutableMapping):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, MutableMapping) else hasattr(holder, name)
