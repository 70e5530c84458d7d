"""Let all ranks of a run proceed together, or raise the same error together."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusError, from_plain, to_plain

T = TypeVar("T")


def on_rank_zero(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on global rank zero only, and give every rank the result or the error.

    One broadcast, after the call has finished: no rank waits for the network inside a collective.

    Args:
        strategy: The run's strategy.
        call: Returns a value that pickles.

    Raises:
        ZeusError: What the call raised on rank zero, rebuilt on every rank.
    """
    if _world_size(strategy) == 1:
        return call()
    answer = _attempt(call) if strategy.is_global_zero else None
    result: T = _unpack(strategy.broadcast(answer))
    return result


def on_every_rank(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on every rank, and raise on all of them when it failed on any.

    One reduction, and one broadcast when a rank failed.

    Returns:
        What the call returned on this rank.

    Raises:
        ZeusError: The error of the lowest rank that failed.
    """
    if _world_size(strategy) == 1:
        return call()
    answer = _attempt(call)
    failed = [0.0] * _world_size(strategy)
    failed[rank_of(strategy)] = float(answer[0] == "error")
    counts = _sum(strategy, failed)
    if any(counts):
        first = next(rank for rank, count in enumerate(counts) if count)
        answer = strategy.broadcast(answer, src=first)
    result: T = _unpack(answer)
    return result


def gather(strategy: Strategy, value: Any) -> list[Any]:
    """Every rank's value, in the order of ranks, on all of them.

    Two reductions: of the lengths, and of the bytes, each rank's in a row of its own.

    Args:
        strategy: The run's strategy.
        value: A JSON value; tuples arrive as lists.
    """
    world, rank = _world_size(strategy), rank_of(strategy)
    text = json.dumps(value).encode()
    lengths = [0.0] * world
    lengths[rank] = len(text)
    lengths = _sum(strategy, lengths)
    width = int(max(lengths))
    rows = [0.0] * (world * width)
    rows[rank * width : rank * width + len(text)] = text
    rows = _sum(strategy, rows)
    starts = range(0, world * width, width)
    return [
        json.loads(bytes(map(int, rows[start : start + int(length)])))
        for start, length in zip(starts, lengths, strict=True)
    ]


def sum_over_ranks(strategy: Strategy, value: float) -> float:
    """Sum a measurement over all ranks; NaN on any rank gives NaN on all."""
    return _sum(strategy, [value])[0]


def rank_of(strategy: Strategy) -> int:
    """This process's global rank; 0 where there is one process only."""
    return int(getattr(strategy, "global_rank", 0))


def _attempt(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return ("ok", call())
    except ZeusError as error:
        return ("error", *to_plain(error))
    except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}, in {at.name})"
        return ("error", *to_plain(ZeusError(text)))


def _unpack(answer: Any) -> Any:
    if answer[0] == "error":
        raise from_plain(answer[1:])
    return answer[1]


def _sum(strategy: Strategy, values: list[float]) -> list[float]:
    if _world_size(strategy) == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=strategy.root_device)
    total = strategy.reduce(tensor, reduce_op="sum")  # the default is the mean
    return [float(value) for value in total]


def _world_size(strategy: Strategy) -> int:
    return int(getattr(strategy, "world_size", 1))
