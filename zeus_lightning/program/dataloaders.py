"""Read and check the train dataloaders' batch size."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import (
    get_from,
    holders,
    is_size,
    loader_origin,
    share,
)
from zeus_lightning.program.internals import passed_source, train_loaders


def check_loaders(
    trainer: Trainer,
    module: LightningModule,
    attribute: str,
    batch_size: int,
    own_size: int,
    batch: Any = None,
) -> None:
    """Check that the train dataloaders have the per-device batch size that was set.

    One of them must have it. Others may have sizes of their own, such as the unlabelled batches of
    FixMatch; a line names them as training starts. If no size can be read, the tensors of a batch
    show one that did not change; anything else there is a warning.

    Args:
        trainer: The program's Trainer.
        module: Its module.
        attribute: The attribute that was set.
        batch_size: What it was set to.
        own_size: What the program had set it to.
        batch: The first batch of new loaders; None before any.

    Raises:
        ZeusConfigError: None has the batch size.
    """
    sizes, origin = _sizes(trainer.train_dataloader), loader_origin(trainer, module)
    if batch_size in sizes:
        others = sorted({size for size in sizes if size not in (None, batch_size)})
        if others and batch is None:
            rank_zero_info(
                f"zeus: {attribute} was set to {batch_size}; the {origin} also has loaders with "
                f"batches of {', '.join(map(str, others))}, which may be intended"
            )
        return
    if None in sizes:
        if batch is None:
            return
        sizes = sorted(set(_lengths(batch)))
        if batch_size in sizes or trainer.is_last_batch:
            return
        if sizes != [own_size]:
            rank_zero_warn(
                f"zeus: cannot read the batch size of the {origin}; check that it equals "
                f"{attribute}, which was set to {batch_size} after the datamodule's setup()"
            )
            return
    values = [get_from(each, attribute.rpartition(".")[2]) for each in holders(module, attribute)]
    changed = next((value for value in values if is_size(value) and value != batch_size), None)
    if changed is not None:
        raise ZeusConfigError(
            f"the callback set {attribute} to {batch_size} per device, but the program changed it "
            f"to {changed}; remove that change, for example from setup(), and pass "
            "default_batch_size=..., the total over all devices"
        )
    raise ZeusConfigError(
        f"the callback set {attribute} to {batch_size} per device, but the {origin} has batches "
        f"of {sizes[0]}; build loaders on each call with self.{attribute}, or pass "
        "batch_arg_name=..."
    )


def kept_loaders(trainer: Trainer, module: LightningModule) -> list[DataLoader[Any]]:
    """The dataloaders that the module and its datamodule already have as attributes."""
    owners = (module, trainer.datamodule)  # type: ignore[attr-defined]
    values = [value for owner in owners if owner is not None for value in vars(owner).values()]
    return [value for value in values if isinstance(value, DataLoader)]


def warn_of_kept(
    trainer: Trainer, module: LightningModule, attribute: str, kept: list[DataLoader[Any]]
) -> None:
    """Warn if the train dataloaders were built before the batch size was set.

    A run with the program's own batch size trains, but one with another would be refused.

    Args:
        trainer: The program's Trainer.
        module: Its module.
        attribute: The attribute that was set.
        kept: The `kept_loaders` before that.
    """
    used, ids = train_loaders(trainer), set(map(id, kept))
    are_kept = all(id(each) in ids and each.batch_size for each in used)
    if used and are_kept and passed_source(trainer) is None:
        rank_zero_warn(
            f"zeus: {loader_origin(trainer, module)} returned a loader built before the callback "
            f"set {attribute}, so other batch sizes will fail; build it on each call with "
            f"batch_size=self.{attribute}"
        )


def _lengths(batch: Any) -> list[int]:
    """The length of each tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return [len(batch)] if batch.ndim else []
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [length for each in batch for length in _lengths(each)]
    return []


def too_few_batches(trainer: Trainer) -> str | None:
    """Why Lightning refuses epochs with so few batches; None if it does not."""
    part = trainer.limit_train_batches
    for loader in train_loaders(trainer):
        batches = sized_len(loader)
        if batches and isinstance(part, float) and part * batches < 1:
            return f"limit_train_batches={part} is less than one batch (an epoch has {batches})"
    in_epoch, interval = trainer.fit_loop.max_batches, trainer.val_check_interval
    every_epoch = trainer.check_val_every_n_epoch is not None
    if isinstance(interval, int) and every_epoch and 0 < in_epoch < interval:
        return f"val_check_interval={interval} exceeds the {in_epoch} batches of an epoch"
    return None


def global_batch_size(trainer: Trainer) -> int | None:
    """The train dataloaders' global batch size; None if unknown or changing during the run."""
    sizes = set(_sizes(trainer.train_dataloader))
    size = sizes.pop() if len(sizes) == 1 else None
    with suppress(ZeusConfigError):
        return size * share(trainer) if size else None
    return None


def _sizes(loaders: Any) -> list[Any]:
    """The batch size of each dataloader of a collection; None if it cannot be read."""
    flattened = getattr(loaders, "flattened", None)  # of a CombinedLoader, of either package
    sizes = []
    for loader in CombinedLoader(loaders).flattened if flattened is None else flattened:
        holders = (loader, getattr(loader, "batch_sampler", None))
        found = (getattr(holder, "batch_size", None) for holder in holders)
        sizes.append(next((size for size in found if isinstance(size, int)), None))
    return sizes
