"""Check that the train dataloaders follow the program's batch size, and read what they have."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import IterableDataset

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.batch_size import FROM_DATASETS, data_owner, is_from_datasets, share
from zeus_lightning.program.injection import Injection


@dataclass(frozen=True)
class Probe:
    """The batch sizes of train dataloaders that were built with another batch size."""

    batch_size: int
    sizes: list[int | None]


def build_probe(
    trainer: Trainer, module: LightningModule, attribute: str, batch_size: int
) -> Probe | None:
    """Build the train dataloaders with another per-device batch size, and drop them.

    The random number generators stay as they are, and so do the attributes of the program: it may
    keep the loader that it has built. If it cannot build them, that is a warning, and the result is
    None: this run does not need them.

    Raises:
        ZeusConfigError: The program has a batch size that cannot be set.
    """
    injection = Injection(module)
    source = trainer.fit_loop._data_source
    build, attributes = getattr(source.instance, source.name), dict(vars(source.instance))
    try:
        injection.set_batch_size(attribute, batch_size)
        with isolate_rng(include_cuda=False):
            return Probe(batch_size, _sizes(source.dataloader()))
    except ZeusConfigError:
        raise  # no batch size can be set
    except Exception as error:  # noqa: BLE001 - of the user's code
        warnings.warn(
            f"zeus: building the dataloader of {data_owner(trainer, module)} fails with batch size "
            f"{batch_size} per device, which other runs may get: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None
    finally:
        vars(source.instance).clear()
        vars(source.instance).update(attributes)
        if hasattr(build, "cache_clear"):  # of functools.cache
            build.cache_clear()
        injection.undo()


def check_loaders(
    trainer: Trainer,
    module: LightningModule,
    attribute: str,
    batch_size: int,
    probe: Probe | None,
) -> bool:
    """Raise a `ZeusConfigError` unless each train dataloader follows the per-device batch size.

    One follows if it has this batch size, or, shown by a probe, another but constant multiple.

    Returns:
        Whether the batch size of every loader could be read.
    """
    sizes, first = _sizes(trainer.train_dataloader), probe
    if probe is None and any(size not in (None, batch_size) for size in sizes):
        probe = build_probe(trainer, module, attribute, 2 * batch_size)
    if probe is None or len(probe.sizes) != len(sizes):
        probe = Probe(batch_size, [batch_size] * len(sizes))  # each must have this size
    for index, (size, other) in enumerate(zip(sizes, probe.sizes, strict=True)):
        if size is None or other is None or size * probe.batch_size == other * batch_size:
            continue
        tried, found = (batch_size, size) if size != batch_size else (probe.batch_size, other)
        remedy = (
            "build each DataLoader in train_dataloader(), not in setup() or __init__(), with "
            f"batch_size=self.{attribute}; if train_dataloader() uses another attribute, such as "
            "one that setup() sets, name that one by batch_arg_name=..."
        )
        if is_from_datasets(trainer):
            remedy = FROM_DATASETS
        elif first is not None and size == other == first.batch_size:
            remedy = (
                "it keeps the first loader that it builds, or its size is constant: build one at "
                f"each call, with batch_size=self.{attribute}"
            )
        which = f"loader {index + 1} of {len(sizes)} in " if len(sizes) > 1 else ""
        raise ZeusConfigError(
            f"{attribute} was set to {tried} per device, but {which}the train_dataloader() of "
            f"{data_owner(trainer, module)} has batches of {found}; {remedy}"
        )
    return None not in sizes


def too_few_samples(trainer: Trainer, batch_size: int) -> str | None:
    """How many samples a train dataloader has that are fewer than its batch; None if no loader has.

    This is for training that had no batch: such a loader has dropped its only one. An iterable
    dataset is read again, up to one batch of each worker. `batch_size` stands for sizes that cannot
    be read.
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
    """Why Lightning trains no epoch with so few batches, if that is so; None if it is not."""
    combined, part = trainer.fit_loop._combined_loader, trainer.limit_train_batches
    for loader in combined.flattened if combined is not None else []:
        batches = sized_len(loader)
        if batches and isinstance(part, float) and part * batches < 1:
            return f"limit_train_batches={part} of the {batches} batches of an epoch is less than 1"
    in_epoch, interval = trainer.fit_loop.max_batches, trainer.val_check_interval
    every_epoch = trainer.check_val_every_n_epoch is not None
    if isinstance(interval, int) and every_epoch and 0 < in_epoch < interval:
        return f"an epoch has {in_epoch} batches, fewer than val_check_interval={interval}"
    return None


def _samples(loader: Any, enough: int) -> int:
    """The samples that a device gets from a dataloader; 0 if unknown, and `enough` if more."""
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
