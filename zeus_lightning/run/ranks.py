"""The ranks of a run: proceed together, or raise the same error together."""

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from lightning.pytorch.strategies import Strategy

from zeus_lightning.errors import ZeusConfigError, ZeusError
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit

T = TypeVar("T")


def on_rank_zero(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on global rank zero only, and return the result or raise the error on every rank.

    The call has finished before its result, which must pickle, is broadcast: no rank waits for the
    network inside a collective. Any other error than a `ZeusError` becomes one.
    """
    if _world_size(strategy) == 1:
        return call()
    attempt: Any = _attempt(call) if strategy.is_global_zero else None
    result: T
    result, error = strategy.broadcast(attempt)
    if error is not None:
        raise error
    return result


def on_every_rank(strategy: Strategy, call: Callable[[], T]) -> T:
    """Call on every rank; if any fails, raise the error of the lowest such rank on all of them."""
    if _world_size(strategy) == 1:
        return call()
    result: T
    result, error = _attempt(call)
    for error_of_rank in gather(strategy, error):
        if error_of_rank is not None:
            raise error_of_rank
    return result


def gather(strategy: Strategy, value: T) -> list[T]:
    """Return every rank's value, which must pickle, in the order of ranks, on all ranks."""
    world_size = _world_size(strategy)
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(values, value)
    return values


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks for a message: `rank 0`, `ranks 0, 1`."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def sum_over_ranks(strategy: Strategy, value: float) -> float:
    """Sum a measurement over all ranks; NaN on any rank gives NaN on all."""
    if _world_size(strategy) == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=strategy.root_device)
    return float(strategy.reduce(tensor, reduce_op="sum"))  # by default it takes the mean


def rank_of(strategy: Strategy) -> int:
    """This process's global rank; 0 if it is the only process."""
    return int(getattr(strategy, "global_rank", 0))


def local_rank_of(strategy: Strategy) -> int:
    """This process's rank on its node; 0 if it is the only process."""
    return int(getattr(strategy, "local_rank", 0))


def _attempt(call: Callable[[], Any]) -> tuple[Any, ZeusError | None]:
    """The result of a call, or its error: other ranks wait for either."""
    try:
        return call(), None
    except ZeusError as error:
        return None, error
    except Exception as error:  # noqa: BLE001 - raised on all ranks, with its place
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({at.filename}, line {at.lineno}, in {at.name})"
        return None, ZeusError(text)


def _world_size(strategy: Strategy) -> int:
    return int(getattr(strategy, "world_size", 1))


class TorchRanks:
    """What this package needs of a Lightning strategy, for any program on `torch.distributed`.

    Fabric's strategies of several processes (DDP, FSDP, DeepSpeed) set that up, and so does
    `torch.distributed.init_process_group`. Without it there is one rank.

    Args:
        device: The device on which this rank trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.root_device = device
        destroy_gloo_at_exit()

    def check_set_up(self) -> None:
        """Raise a `ZeusConfigError` if torchrun or another launcher has more ranks than torch."""
        ranks = os.environ.get("WORLD_SIZE", "")
        if "RANK" in os.environ and ranks.isdecimal() and int(ranks) > 1 and not _is_set_up():
            raise ZeusConfigError(
                f"this is rank {os.environ['RANK']} of {ranks} ($RANK, $WORLD_SIZE), but "
                "torch.distributed is not set up; enter the block after init_process_group()"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return torch.distributed.get_world_size() if _is_set_up() else 1

    @property
    def global_rank(self) -> int:
        """This process's rank."""
        return torch.distributed.get_rank() if _is_set_up() else 0

    @property
    def is_global_zero(self) -> bool:
        """Whether it is rank zero."""
        return self.global_rank == 0

    @property
    def local_rank(self) -> int:
        """This process's rank on its node, as the launcher says; 0 if it does not."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    def broadcast(self, value: Any) -> Any:
        """Return rank zero's value, which must pickle, on all ranks."""
        if self.world_size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0, device=self.root_device)
        return values[0]

    def reduce(self, tensor: torch.Tensor, reduce_op: str) -> torch.Tensor:
        """Return the sum of all ranks' tensors."""
        assert reduce_op == "sum"
        torch.distributed.all_reduce(tensor)
        return tensor


def _is_set_up() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
