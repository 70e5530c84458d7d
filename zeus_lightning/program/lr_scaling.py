"""Scale a module's learning rate with its batch size."""

import math
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from numbers import Real
from typing import Any, Literal

from lightning.pytorch import LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.holders import get_from, holders, set_on

LRScaling = Literal["linear", "sqrt"]


def lr_factor(rule: LRScaling, batch_size: int, default_batch_size: int) -> float:
    """What to multiply the learning rate with that is tuned for the default size, both global.

    `linear` (Goyal et al., 2017, section 2.1) is meant for SGD; `sqrt` (Krizhevsky, 2014) is often
    better for Adam and its variants.
    """
    ratio = batch_size / default_batch_size
    return ratio if rule == "linear" else math.sqrt(ratio)


def find_rates(module: LightningModule) -> list[tuple[Any, str, Any]]:
    """What has a learning rate, its name there, and the rate: module, datamodule and hparams.

    Raises:
        ZeusConfigError: What has the name of a learning rate is not a positive number.
    """
    found = [
        (holder, name, get_from(holder, name))
        for name in ("lr", "learning_rate")
        for holder in holders(module, name)
    ]
    rates = [each for each in found if _is_rate(each[2])]
    if found and not rates:
        holder, name, value = found[0]
        owner = "hparams" if isinstance(holder, MutableMapping) else type(holder).__name__
        raise ZeusConfigError(f"{owner}.{name} is {value!r}; lr_scaling needs a positive number")
    return rates


def _is_rate(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0


def base_rates(optimizers: Iterable[Optimizer]) -> list[float]:
    """The rate that each parameter group's schedule starts from, or rises to."""
    return [
        float(next(group[key] for key in ("max_lr", "initial_lr", "lr") if key in group))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def rates_with(module: LightningModule, rates: list[tuple[Any, str, Any]]) -> list[float]:
    """The rates of the optimizers that the module builds with other learning rates.

    They are dropped, and what `configure_optimizers` sets on the module is taken back.

    Args:
        module: The module.
        rates: What has the learning rates, their names there, and the rates, as in `find_rates`.
    """
    attributes = dict(vars(module))
    current = [(holder, name, get_from(holder, name)) for holder, name, _ in rates]
    try:
        for each in rates:
            set_on(*each)
        return base_rates(_optimizers_in(module.configure_optimizers()))
    finally:
        for each in current:
            set_on(*each)
        vars(module).clear()
        vars(module).update(attributes)


def scale_groups(
    optimizers: Sequence[Optimizer], schedulers: Iterable[object], factors: Sequence[float]
) -> None:
    """Multiply the rates of optimizers, and those that schedulers keep.

    Args:
        optimizers: The optimizers.
        schedulers: Their schedulers.
        factors: What to multiply with, for each parameter group of all optimizers, in order.

    Raises:
        ZeusConfigError: A scheduler is not torch's, nor derived from one of torch's.
    """
    of_torch = []
    for scheduler in _flattened(schedulers):
        if not isinstance(scheduler, LRScheduler):
            raise ZeusConfigError(
                "configure_optimizers() does not take the learning rate from the module's 'lr' or "
                f"'learning_rate', and lr_scaling cannot change it in {type(scheduler).__name__}; "
                "use that attribute, or leave lr_scaling out"
            )
        of_torch.append(scheduler)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    factor_of = {id(group): factor for group, factor in zip(groups, factors, strict=True)}
    for group, factor in zip(groups, factors, strict=True):
        _scale(group, factor)
    for optimizer in optimizers:
        own = {factor_of[id(group)] for group in optimizer.param_groups}
        if len(own) == 1:  # for groups that are added later
            _scale(optimizer.defaults, *own)
    for scheduler in of_torch:
        # by groups: its optimizer may be the one that a wrapper shares them with, as SAM does
        own_factors = [factor_of.get(id(group), 1.0) for group in scheduler.optimizer.param_groups]
        for name in ("base_lrs", "max_lrs", "_last_lr"):
            if hasattr(scheduler, name):
                rates = zip(getattr(scheduler, name), own_factors, strict=True)
                setattr(scheduler, name, [lr * factor for lr, factor in rates])


def _scale(group: dict[str, Any], factor: float) -> None:
    for key in ("lr", "initial_lr", "max_lr", "min_lr"):
        if group.get(key) is not None:
            group[key] = group[key] * factor


def _flattened(schedulers: Iterable[object]) -> Iterator[object]:
    """Yield schedulers, and those that they consist of."""
    for scheduler in schedulers:
        yield scheduler
        yield from _flattened(getattr(scheduler, "_schedulers", ()))


def _optimizers_in(configured: Any) -> Iterator[Optimizer]:
    """Yield the optimizers in what `configure_optimizers` returns."""
    if isinstance(configured, Optimizer):
        yield configured
    elif isinstance(configured, dict):
        yield from _optimizers_in(configured.get("optimizer"))
    elif isinstance(configured, list | tuple):
        for each in configured:
            yield from _optimizers_in(each)
