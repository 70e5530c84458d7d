"""`TorchRanks`: the ranks of a program without a Trainer, over `torch.distributed`."""

from __future__ import annotations

import os
from typing import Any

import torch

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.ranks.at_exit import leave_at_exit


class TorchRanks:
    """What this package needs of a Lightning strategy, for any program on `torch.distributed`.

    Fabric's strategies of several processes (DDP, FSDP, DeepSpeed) set that up, and so does
    `torch.distributed.init_process_group`. Without it there is one rank.

    Args:
        device: The device on which this rank trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.root_device = device
        leave_at_exit()

    def check_set_up(self) -> None:
        """Raise a `ZeusConfigError` if torchrun or another launcher has more ranks than torch."""
        ranks = os.environ.get("WORLD_SIZE", "")
        if "RANK" in os.environ and ranks.isdecimal() and int(ranks) > 1 and not _is_set_up():
            raise ZeusConfigError(
                f"this process is rank {os.environ['RANK']} of {ranks} ($RANK, $WORLD_SIZE), but "
                "torch.distributed is not set up, so each rank would be a run of its own; enter "
                "the block after init_process_group(), Fabric's launch() or accelerate's "
                "PartialState(), and leave it before destroy_process_group(); or unset $RANK, if "
                "each shall be a run of its own"
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
