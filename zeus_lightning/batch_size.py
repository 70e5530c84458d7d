"""Find the batch size of a Lightning program, and check that its dataloaders follow it.

A *global* batch is what one optimizer step sees: `share` per-device batches, where
`share = devices * accumulate_grad_batches`. The program speaks of per-device batch sizes; the
service, as the callback was told, of global ones or of the program's own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal, SupportsIndex, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.parsing import lightning_getattr, lightning_hasattr

from zeus_lightning.errors import ZeusConfigError

Scope = Literal["global", "per_device"]


def positive_sizes(batch_sizes: Iterable[int]) -> list[int]:
    """The given batch sizes, ascending and each once.

    Raises:
        ZeusConfigError: There is none, or one is not a positive integer.
    """
    sizes = list(batch_sizes) if isinstance(batch_sizes, Iterable) else []
    if not sizes or not all(map(is_size, sizes)):
        raise ZeusConfigError(
            f"batch_sizes is {batch_sizes!r}; it must hold positive integers, and at least one"
        )
    return sorted({operator.index(size) for size in sizes})


def is_size(value: object) -> bool:
    """Whether a value is a batch size: a positive integer, also one of numpy's."""
    return (
        hasattr(value, "__index__")
        and not isinstance(value, bool)
        and operator.index(cast("SupportsIndex", value)) > 0
    )


def default_sizes(default: int, share: int) -> list[int]:
    """Batch sizes to try around a default: times 2**-3 to 2**3, at least 1, that can be shared.

    Args:
        default: Global batch size, a multiple of `share`.
        share: Per-device batches in a global batch.
    """
    sizes = {max(1, default * 2**exponent // 8) for exponent in range(7)}
    return sorted(size for size in sizes if size % share == 0)


def check_shares(batch_sizes: list[int], share: int) -> None:
    """Check that each global batch size divides into equal per-device batches.

    Raises:
        ZeusConfigError: Some do not; all of them are named.
    """
    uneven = [size for size in batch_sizes if size % share]
    if uneven:
        raise ZeusConfigError(
            f"batch sizes {uneven} do not divide by {share} (devices times "
            "accumulate_grad_batches), so the devices cannot have equal shares; "
            f"use multiples of {share}"
        )


def share(trainer: Trainer, scope: Scope = "global") -> int:
    """Per-device batches in what the service calls a batch.

    Args:
        trainer: Has as many devices as its strategy gives different data to, and accumulates.
        scope: `per_device`: the service speaks of the program's own batches, one each.

    Raises:
        ZeusConfigError: The global batch size would change from epoch to epoch.
    """
    if scope == "per_device":
        return 1
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if hasattr(callback, "going_to_accumulate_grad_batches"):
            raise ZeusConfigError(
                f"{type(callback).__name__} changes accumulate_grad_batches in mid-run, and with "
                "it the global batch size that the service is to choose; use "
                "Trainer(accumulate_grad_batches=...), or batch_size_scope='per_device'"
            )
    sampler = trainer.distributed_sampler_kwargs or {}  # fewer than ranks in a model-parallel run
    devices = int(sampler.get("num_replicas", trainer.world_size))
    return devices * trainer.accumulate_grad_batches


def find_batch_size(trainer: Trainer, module: LightningModule) -> int:
    """The program's per-device batch size: on the datamodule, the module, or their hparams.

    Raises:
        ZeusConfigError: Dataloaders were passed straight to `fit`, there is no `batch_size`, or it
            is not a positive integer.
    """
    if not trainer.fit_loop._data_source.is_module():  # as Lightning's own batch size tuner asks
        raise ZeusConfigError(
            "a dataloader passed straight to fit() cannot be resized; give fit() a datamodule, or "
            f"the module {type(module).__name__} a train_dataloader(), that uses self.batch_size"
        )
    owner = data_owner(trainer, module)
    if not lightning_hasattr(module, "batch_size"):
        raise ZeusConfigError(
            f"{owner} has no attribute 'batch_size' (nor has its hparams); add one and use it in "
            "train_dataloader()"
        )
    size: Any = lightning_getattr(module, "batch_size")
    if not is_size(size):
        raise ZeusConfigError(f"batch_size of {owner} is {size!r}; it must be a positive integer")
    return operator.index(size)


def check_loaders(trainer: Trainer, module: LightningModule, batch_size: int) -> bool:
    """Check that the train dataloaders give batches of the injected per-device size.

    Returns:
        Whether the size of every loader could be seen.

    Raises:
        ZeusConfigError: A loader gives batches of another size.
    """
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    sizes = [_loader_batch_size(loader) for loader in loaders]
    for size in sizes:
        if size not in (None, batch_size):
            raise ZeusConfigError(
                f"batch_size was set to {batch_size} per device, but the train_dataloader() of "
                f"{data_owner(trainer, module)} gives batches of {size}; build the DataLoader in "
                "train_dataloader(), not in setup() or __init__(), with batch_size=self.batch_size"
            )
    return None not in sizes


def trained_size(trainer: Trainer) -> int | None:
    """The global batch size of the train dataloaders as they are.

    Returns:
        None where it cannot be seen, or changes from epoch to epoch.
    """
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    sizes = {_loader_batch_size(loader) for loader in loaders}
    size = sizes.pop() if len(sizes) == 1 else None
    with suppress(ZeusConfigError):
        return size * share(trainer) if size else None
    return None


def data_owner(trainer: Trainer, module: LightningModule) -> str:
    """Who gives the train dataloader, for messages: `datamodule Digits` or `module Net`."""
    datamodule = trainer.datamodule  # type: ignore[attr-defined]
    if datamodule is not None:
        return f"datamodule {type(datamodule).__name__}"
    return f"module {type(module).__name__}"


def _loader_batch_size(loader: Any) -> int | None:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(holder, "batch_size", None)
        if isinstance(size, int):
            return size
    return None
