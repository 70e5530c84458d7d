"""Read and check the train dataloaders' batch size."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import loader_origin, share


def check_loaders(
    trainer: Trainer, module: LightningModule, attribute: str, batch_size: int
) -> None:
    """Check that the train dataloaders have the per-device batch size that was set.

    One of them must have it. Others may have sizes of their own, such as the unlabelled batches of
    FixMatch. A size that cannot be read is a warning.

    Args:
        trainer: The program's Trainer.
        module: Its module.
        attribute: The attribute that was set.
        batch_size: What it was set to.

    Raises:
        ZeusConfigError: None has the batch size.
    """
    sizes, origin = _sizes(trainer.train_dataloader), loader_origin(trainer, module)
    if batch_size in sizes:
        return
    if None in sizes:
        rank_zero_warn(
            f"zeus: cannot read the batch size of the {origin}; make sure that it is "
            f"{batch_size}, which {attribute} was set to after the datamodule's setup()"
        )
        return
    raise ZeusConfigError(
        f"the callback set {attribute} to {batch_size} per device, but the {origin} has batches "
        f"of {sizes[0]}; build it at each call with batch_size=self.{attribute}, which setup() "
        "must not change, or pass the attribute that it uses as batch_arg_name"
    )


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
