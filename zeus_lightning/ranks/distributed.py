"""Let all ranks of a run proceed together, or raise the same error together."""

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusError, from_plain, to_plain

T = TypeVar("T")


def on_rank_zero(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on global rank zero only, and return the result or raise the error on every rank.

    The call has finished before its result, which must pickle, is broadcast: no rank waits for the
    network inside a collective. An error that is no `ZeusError` becomes one.
    """
    if _world_size(strategy) == 1:
        return call()
    attempt: Any = _attempt(call) if strategy.is_global_zero else None
    result: T
    result, error = strategy.broadcast(attempt)
    if error is not None:
        raise from_plain(error)
    return result


def on_every_rank(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on every rank; if any fails, raise the error of the lowest such rank on all of them."""
    if _world_size(strategy) == 1:
        return call()
    result: T
    result, error = _attempt(call)
    for error_of_rank in gather(strategy, error):
        if error_of_rank is not None:
            raise from_plain(error_of_rank)
    return result


def gather(strategy: Strategy, value: T) -> list[T]:
    """Return every rank's value, which must pickle, in the order of ranks, on all ranks."""
    world_size = _world_size(strategy)
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


def sum_over_ranks(strategy: Strategy, value: float) -> float:
    """Sum a measurement over all ranks; NaN on any rank gives NaN on all."""
    if _world_size(strategy) == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=strategy.root_device)
    return float(strategy.reduce(tensor, reduce_op="sum"))  # by default it takes the mean


def rank_of(strategy: Strategy) -> int:
    """This process's global rank; 0 if it is the only process."""
    return int(getattr(strategy, "global_rank", 0))


def is_watched(strategy: object) -> bool:
    """Whether Lightning may watch this rank's process, and kill rank zero if it fails first.

    Rank zero's exit status is that of the run then. Ranks that something else has started with
    `LOCAL_RANK` look the same.

    Args:
        strategy: Lightning's or Fabric's.
    """
    environment = getattr(strategy, "cluster_environment", None)
    local_rank = int(getattr(strategy, "local_rank", 0))
    return type(environment).__name__ == "LightningEnvironment" and local_rank > 0


def _attempt(call: Callable[[], Any]) -> tuple[Any, tuple[str, str, dict[str, Any]] | None]:
    """The result of a call, or the plain values of its error: other ranks wait for either."""
    try:
        return call(), None
    except ZeusError as error:
        return None, to_plain(error)
    except Exception as error:  # noqa: BLE001 - raised on all ranks, with its place
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}, in {at.name})"
        return None, to_plain(ZeusError(text))


def _world_size(strategy: Strategy) -> int:
    return int(getattr(strategy, "world_size", 1))
