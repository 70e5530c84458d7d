"""A job's batch sizes, and the batch size that a Lightning program has.

A *global* batch is the batch of one optimizer step: `share` per-device batches, where
`share = devices * accumulate_grad_batches`. A program has per-device batch sizes; a job has global
ones or the program's own, by the callback's `batch_size_scope`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Literal, SupportsIndex

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.internals import passed_source
from zeus_lightning.program.passed_loaders import passed_batch_size

Scope = Literal["global", "per_device"]

_OF_OTHER_LOADERS = {"val", "valid", "validation", "eval", "test", "predict"}
"""Words in the names of batch sizes that are not of training."""


def positive_sizes(batch_sizes: Iterable[int]) -> list[int]:
    """Sort batch sizes without duplicates; raise `ZeusConfigError` if any is invalid."""
    sizes = list(batch_sizes) if isinstance(batch_sizes, Iterable) else []
    if not sizes or not all(map(is_size, sizes)):
        raise ZeusConfigError(
            f"batch_sizes is {batch_sizes!r}; it must be one or more positive integers"
        )
    return sorted({operator.index(size) for size in sizes})


def is_size(value: object) -> bool:
    """Whether a value is a batch size: a positive integer, numpy's included."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    return operator.index(value) > 0


def default_sizes(default: int, share: int) -> list[int]:
    """The multiples of `share` among `default` times 2**-3 to 2**3."""
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


def share(trainer: Trainer, scope: Scope | None = None) -> int:
    """Number of per-device batches in a batch of the job; an error if it changes during the run."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    classes = [cls.__name__ for callback in callbacks for cls in type(callback).__mro__]
    if "BatchSizeFinder" in classes:  # of either Lightning package
        raise ZeusConfigError(
            "BatchSizeFinder and ZeusBSOCallback both set the batch size; remove BatchSizeFinder "
            "(if a batch size does not fit in memory, later runs avoid it)"
        )
    if scope == "per_device":
        return 1
    for callback in callbacks:
        if hasattr(callback, "going_to_accumulate_grad_batches"):
            raise ZeusConfigError(
                f"{type(callback).__name__} changes accumulate_grad_batches, and with it the "
                "global batch size, during the run; pass batch_size_scope='per_device'"
            )
    sampler = trainer.distributed_sampler_kwargs or {}
    replicas = int(sampler.get("num_replicas", trainer.world_size))  # model parallel: fewer
    return replicas * trainer.accumulate_grad_batches


def size_attribute(trainer: Trainer) -> str:
    """The name of the attribute that has the program's batch size, if no argument names it.

    A datamodule whose `setup()` divides `batch_size` among the devices, as the one of
    lightning-hydra-template, has done so before a callback's `setup()`. Its `train_dataloader()`
    uses the quotient. A datamodule may also have just one attribute of another name that contains
    "batch_size", such as `train_batch_size`.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    usual, quotient = "batch_size", "batch_size_per_device"
    if data is None:
        return usual
    if is_size(vars(data).get(quotient)):
        return quotient
    similar = _similar_names(data)
    has_usual = [*holders_in(data, usual), *holders_in(data, quotient)]
    return similar[0] if len(similar) == 1 and not has_usual else usual


def default_batch_size(
    trainer: Trainer, module: LightningModule, attribute: str, share: int, given: int | None
) -> int:
    """The job's default batch size: the given one, or else the program's own times its share.

    If dataloaders were passed to `fit`, they have the program's own. Otherwise it comes from the
    datamodule, or from the module if the datamodule has none, and from the attribute itself before
    the hparams, from which it may be derived.

    Raises:
        ZeusConfigError: The program has no batch size, or none that can be set.
    """
    if (source := passed_source(trainer)) is not None:
        of_loader = passed_batch_size(
            source.instance,
            f"instead, define a train_dataloader() in {type(module).__name__} that uses "
            f"self.{attribute}",
        )
        return of_loader * share if given is None else operator.index(given)
    owner = data_owner(trainer, module)
    data = trainer.datamodule  # type: ignore[attr-defined]
    found = [*holders_in(data, attribute)] or [*holders_in(module, attribute)]
    if not found:
        similar = _similar_names(module if data is None else data)
        name = repr(similar[0]) if similar else "NAME, the attribute that train_dataloader() uses"
        remedy = f"pass batch_arg_name={name}, or add and use {attribute!r}"
        if type(data) is LightningDataModule:
            remedy = "pass dataloaders to fit() instead of a datamodule made by from_datasets()"
        raise ZeusConfigError(
            f"{owner} has no attribute {attribute!r}, and neither do its hparams; {remedy}"
        )
    values: list[Any] = [get_from(holder, attribute.rpartition(".")[2]) for holder in found]
    own = [operator.index(value) for value in values if is_size(value)]
    if given is not None and (own or None in values):
        return operator.index(given)
    if not own:
        raise ZeusConfigError(
            f"{attribute} of {owner} is {values[0]!r}; it must be a positive integer, or None "
            "if you pass default_batch_size=..."
        )
    return own[0] * share


def _similar_names(owner: Any) -> list[str]:
    """The attributes that may have a train batch size, by name and value."""
    found = [name for name, value in vars(owner).items() if "batch_size" in name and is_size(value)]
    return [name for name in found if _OF_OTHER_LOADERS.isdisjoint(name.split("_"))]


def data_owner(trainer: Trainer, module: LightningModule) -> str:
    """The owner of the train dataloader, for messages: `datamodule Digits` or `module Net`."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    kind, owner = ("module", module) if data is None else ("datamodule", data)
    return f"{kind} {type(owner).__name__}"


def loader_origin(trainer: Trainer, module: LightningModule) -> str:
    """Where the train batches come from, for messages: a method, or the arguments of `fit`."""
    if passed_source(trainer) is not None:
        return "train dataloader passed to fit()"
    return f"train_dataloader() of {data_owner(trainer, module)}"


def holders(module: LightningModule, name: str) -> Iterator[Any]:
    """Yield each holder of a named value: a module, its hparams, its datamodule, their hparams.

    The holder of a nested name, such as `data.batch_size`, is the object or mapping that has its
    last part. The module must be attached to its Trainer.
    """
    for owner in (module, getattr(module.trainer, "datamodule", None)):
        yield from holders_in(owner, name)


def holders_in(owner: Any, name: str) -> Iterator[Any]:
    """Yield the holders of a named value in a module or datamodule: first itself, then hparams."""
    *path, last = name.split(".")
    for root in (owner, getattr(owner, "hparams", None)):
        holder = root
        for part in path:
            holder = get_from(holder, part) if _has(holder, part) else None
        if _has(holder, last):
            yield holder


def get_from(holder: Any, name: str) -> Any:
    """The named value of a mapping or an object."""
    return holder[name] if isinstance(holder, MutableMapping) else getattr(holder, name)


def set_on(holder: Any, name: str, value: Any) -> None:
    """Set a named value of a mapping or an object."""
    if isinstance(holder, MutableMapping):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, MutableMapping) else hasattr(holder, name)
