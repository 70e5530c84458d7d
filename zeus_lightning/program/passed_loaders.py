"""Read and set the batch size of dataloaders that are passed to `fit()`."""

from __future__ import annotations

from copy import copy
from inspect import signature
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from zeus_lightning.errors import ZeusConfigError

_SET = ("self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
_KEPT = [name for name in signature(DataLoader.__init__).parameters if name not in _SET]
"""The arguments of a DataLoader that stay as they are; it has each as an attribute."""


def passed_batch_size(passed: Any, remedy: str) -> int:
    """The batch size of the first of the dataloaders that are passed, per device.

    Raises:
        ZeusConfigError: One that has this batch size cannot be made again.
    """
    following = _following(_combined(passed).flattened)
    obstacle = next(filter(None, map(_obstacle, following)), None)
    if obstacle is not None:
        raise ZeusConfigError(
            f"a dataloader passed straight to fit() cannot be resized: {obstacle}; {remedy}"
        )
    return int(following[0].batch_size)


def resized(passed: Any, batch_size: int) -> Any:
    """Make passed dataloaders again with another batch size, in a collection like theirs.

    Only those with the first one's batch size are made again. Each keeps its dataset, its sampler
    with its random generator, and all other arguments, so the samples come in the same order. The
    originals are not changed.
    """
    combined = _combined(passed)
    following = list(map(id, _following(combined.flattened)))
    combined.flattened = [
        loader
        if id(loader) not in following
        else DataLoader(
            loader.dataset,
            batch_size,
            sampler=loader.sampler,
            **{name: getattr(loader, name) for name in _KEPT},
        )
        for loader in combined.flattened
    ]
    return combined if hasattr(passed, "flattened") else combined.iterables


def _following(loaders: list[Any]) -> list[Any]:
    """The first of some dataloaders, and the others of its batch size."""
    sizes = [getattr(loader, "batch_size", None) for loader in loaders]
    return [loader for loader, size in zip(loaders, sizes, strict=True) if size == sizes[0]]


def _combined(passed: Any) -> Any:
    """A new CombinedLoader: a copy of one that is passed, which may be of either package."""
    return copy(passed) if hasattr(passed, "flattened") else CombinedLoader(passed)


def _obstacle(loader: Any) -> str | None:
    """Why a dataloader cannot be made again; None if it can."""
    if isinstance(loader, list | dict) and not loader:
        return f"{loader} is empty"
    if type(loader) is not DataLoader:
        return f"it is a {type(loader).__name__}, not torch's DataLoader itself"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is an IterableDataset"
    if loader.batch_size is None:
        return "it has a batch_sampler or batch_size=None"
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(sampler.data_source):
            return "its RandomSampler has replacement or num_samples"
    elif type(sampler) is not SequentialSampler:
        return f"its sampler is a {type(sampler).__name__}"
    return None
