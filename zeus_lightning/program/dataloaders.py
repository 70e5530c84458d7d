"""Check the train dataloaders' batch size, and how many samples and batches they have."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torch.utils.data import IterableDataset

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import FROM_DATASETS, is_from_datasets, loader_origin, share
from zeus_lightning.program.internals import train_loaders


def check_loaders(
    trainer: Trainer, module: LightningModule, attribute: str, batch_size: int
) -> None:
    """Check that each train dataloader has the per-device batch size that was set.

    A loader whose size cannot be read is a warning. So is one that has a multiple of the batch
    size next to a loader that follows it, such as the unlabelled batches of FixMatch.

    Raises:
        ZeusConfigError: A loader has another batch size.
    """
    sizes, origin = _sizes(trainer.train_dataloader), loader_origin(trainer, module)
    for index, size in enumerate(sizes):
        which = f"loader {index + 1} of {len(sizes)} in " if len(sizes) > 1 else ""
        if size is None or size == batch_size:
            continue
        if batch_size in sizes and size % batch_size == 0:
            rank_zero_warn(
                f"zeus: {which}the {origin} has batches of {size}, "
                f"{size // batch_size} times {attribute}; make sure that it is always this multiple"
            )
        else:
            remedy = (
                "build each DataLoader in train_dataloader(), not in setup() or __init__(), at "
                f"each call, with batch_size=self.{attribute}; if train_dataloader() uses another "
                "attribute, such as one that setup() sets, pass its name as "
                "batch_arg_name"
            )
            raise ZeusConfigError(
                f"the callback set {attribute} to {batch_size} per device, but {which}the {origin} "
                f"has batches of {size}; "
                f"{FROM_DATASETS if is_from_datasets(trainer) else remedy}"
            )
    if None in sizes:
        rank_zero_warn(
            f"zeus: cannot read the batch size of the {origin}; make sure that "
            f"it is {batch_size}: make batches there from {attribute}, which is set only "
            "after the datamodule's setup()"
        )


def too_few_samples(trainer: Trainer, batch_size: int) -> str | None:
    """Describe the first train dataloader with fewer samples than a batch; None if there is none.

    For training that had no batch: such a loader dropped its only one. An iterable dataset is read
    again, up to one batch of each worker. `batch_size` replaces sizes that cannot be read.
    """
    loaders = CombinedLoader(trainer.train_dataloader).flattened
    for index, (loader, size) in enumerate(zip(loaders, _sizes(loaders), strict=True)):
        size = size or batch_size
        iterable = isinstance(getattr(loader, "dataset", None), IterableDataset)
        workers = getattr(loader, "num_workers", 0) if iterable else 0
        enough = size * max(workers, 1)
        samples = _samples(loader, enough)
        if 0 < samples < enough:
            which = f"loader {index + 1} of {len(loaders)}: " if len(loaders) > 1 else ""
            shared = f" for its {workers} workers" if workers > 1 else ""
            return f"{which}a device gets {samples} samples{shared}, and a batch has {size}"
    return None


def too_few_batches(trainer: Trainer) -> str | None:
    """Why Lightning refuses epochs with so few batches; None if it does not."""
    part = trainer.limit_train_batches
    for loader in train_loaders(trainer):
        batches = sized_len(loader)
        if batches and isinstance(part, float) and part * batches < 1:
            return f"limit_train_batches={part} of the {batches} batches of an epoch is less than 1"
    in_epoch, interval = trainer.fit_loop.max_batches, trainer.val_check_interval
    every_epoch = trainer.check_val_every_n_epoch is not None
    if isinstance(interval, int) and every_epoch and 0 < in_epoch < interval:
        return f"an epoch has {in_epoch} batches, fewer than val_check_interval={interval}"
    return None


def _samples(loader: Any, enough: int) -> int:
    """How many samples a device gets from a dataloader: 0 if unknown, at most `enough`."""
    dataset: Any = getattr(loader, "dataset", None)
    with suppress(Exception):  # of the user's code
        if isinstance(dataset, IterableDataset):
            return sum(1 for _ in islice(dataset, enough))
        return len(getattr(loader, "sampler", dataset))
    return 0


def global_batch_size(trainer: Trainer) -> int | None:
    """The train dataloaders' global batch size; None if unknown or changing during the run."""
    sizes = set(_sizes(trainer.train_dataloader))
    size = sizes.pop() if len(sizes) == 1 else None
    with suppress(ZeusConfigError):
        return size * share(trainer) if size else None
    return None


def _sizes(loaders: Any) -> list[int | None]:
    """The batch size of each dataloader of a collection; None if it cannot be read."""
    flattened = getattr(loaders, "flattened", None)  # of a CombinedLoader, of either package
    sizes = []
    for loader in CombinedLoader(loaders).flattened if flattened is None else flattened:
        holders = (loader, getattr(loader, "batch_sampler", None))
        found = (getattr(holder, "batch_size", None) for holder in holders)
        sizes.append(next((size for size in found if isinstance(size, int)), None))
    return sizes
