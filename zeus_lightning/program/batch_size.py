"""Find the batch size of a Lightning program, and its share of a job's batch size.

A *global* batch is the batch of one optimizer step: `share` per-device batches, where
`share = devices * accumulate_grad_batches`. A program has per-device batch sizes; a job has global
ones or the program's own, by the callback's `batch_size_scope`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.holders import get_from, holders_in
from zeus_lightning.program.internals import has_plain_dataloader

FROM_DATASETS = (
    "LightningDataModule.from_datasets() fixes the batch size: write a class of its own for the "
    "data, with a train_dataloader() that uses the attribute"
)

Scope = Literal["global", "per_device"]

MAX_SIZES = 128
"""A job's batch sizes, as the service accepts them."""


def positive_sizes(batch_sizes: Iterable[int]) -> list[int]:
    """Sort batch sizes without duplicates; raise `ZeusConfigError` if any is invalid."""
    sizes = list(batch_sizes) if isinstance(batch_sizes, Iterable) else []
    if not sizes or not all(map(is_size, sizes)):
        raise ZeusConfigError(
            f"batch_sizes is {batch_sizes!r}; it must contain positive integers, and at least one"
        )
    distinct = sorted({operator.index(size) for size in sizes})
    if len(distinct) > MAX_SIZES:
        raise ZeusConfigError(
            f"batch_sizes has {len(distinct)} batch sizes; it must have at most {MAX_SIZES}"
        )
    return distinct


def is_size(value: object) -> bool:
    """Whether a value is a batch size: a positive integer, also one of numpy's."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    return operator.index(value) > 0


def default_sizes(default: int, share: int) -> list[int]:
    """Batch sizes of `default` times 2**-3 to 2**3, those that are multiples of `share`."""
    sizes = {max(1, default * 2**exponent // 8) for exponent in range(7)}
    return sorted(size for size in sizes if size % share == 0)


def check_shares(batch_sizes: list[int], share: int) -> None:
    """Raise a `ZeusConfigError` that lists the global batch sizes without equal shares."""
    uneven = sorted({size for size in batch_sizes if size % share})
    if uneven:
        raise ZeusConfigError(
            f"batch sizes {uneven} are not divisible by {share} (devices times "
            f"accumulate_grad_batches); use multiples of {share}"
        )


def share(trainer: Trainer, scope: Scope = "global") -> int:
    """Number of per-device batches in a batch of the job; an error if it changes during the run."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    classes = [cls.__name__ for callback in callbacks for cls in type(callback).__mro__]
    if "BatchSizeFinder" in classes:  # of either Lightning package
        raise ZeusConfigError(
            "BatchSizeFinder sets the batch size, and so does ZeusBSOCallback: remove one of them. "
            "A batch size that is too large for the memory fails as out_of_memory, and the next "
            "run gets a smaller one"
        )
    if scope == "per_device":
        return 1
    for callback in callbacks:
        if hasattr(callback, "going_to_accumulate_grad_batches"):
            raise ZeusConfigError(
                f"{type(callback).__name__} changes accumulate_grad_batches during the run, and "
                "with it the global batch size, which the service chooses; use "
                "Trainer(accumulate_grad_batches=...), or batch_size_scope='per_device'"
            )
    sampler = trainer.distributed_sampler_kwargs or {}
    replicas = int(sampler.get("num_replicas", trainer.world_size))  # model parallel: fewer
    return replicas * trainer.accumulate_grad_batches


def default_batch_size(
    trainer: Trainer, module: LightningModule, attribute: str, share: int, given: int | None
) -> int:
    """The job's default batch size: the given one, or else the program's own times its share.

    The program's own is that of the datamodule or, without one there, of the module; the attribute
    itself comes before the hparams, from which it may be derived.

    Raises:
        ZeusConfigError: The program has none, or none that can be set.
    """
    if has_plain_dataloader(trainer):
        raise ZeusConfigError(
            "a dataloader passed straight to fit() cannot be resized; give fit() a datamodule, or "
            f"the module {type(module).__name__} a train_dataloader(), that uses self.{attribute}"
        )
    owner = data_owner(trainer, module)
    data = trainer.datamodule  # type: ignore[attr-defined]
    found = [*holders_in(data, attribute)] or [*holders_in(module, attribute)]
    if not found and is_from_datasets(trainer):
        raise ZeusConfigError(f"{owner} has no attribute {attribute!r}; {FROM_DATASETS}")
    if not found:
        raise ZeusConfigError(
            f"{owner} has no attribute {attribute!r} (nor has its hparams); add one and use it in "
            "train_dataloader(), or name the one that it uses by batch_size_attribute=..."
        )
    values: list[Any] = [get_from(holder, attribute.rpartition(".")[2]) for holder in found]
    own = [operator.index(value) for value in values if is_size(value)]
    if given is not None and (own or None in values):
        return operator.index(given)
    if not own:
        raise ZeusConfigError(
            f"{attribute} of {owner} is {values[0]!r}; it must be a positive integer, or None "
            "where default_batch_size=... is passed"
        )
    if own[0] != own[-1]:
        rank_zero_warn(
            f"zeus: {attribute} of {owner} is {own[0]}, and {own[-1]} in the hparams: the default "
            f"is taken to be {own[0]}, and each run sets both to the batch size that it gets; pass "
            "default_batch_size=... if the default is another one, or name the attribute that "
            "train_dataloader() uses by batch_size_attribute=..."
        )
    return own[0] * share


def is_from_datasets(trainer: Trainer) -> bool:
    """Whether the datamodule was made by `LightningDataModule.from_datasets`, or as it does."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    return data is not None and "train_dataloader" in vars(data)


def data_owner(trainer: Trainer, module: LightningModule) -> str:
    """Name the owner of the train dataloader in a message: `datamodule Digits` or `module Net`."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    kind, owner = ("module", module) if data is None else ("datamodule", data)
    return f"{kind} {type(owner).__name__}"
