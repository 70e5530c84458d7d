"""Trains on two ranks that shard the module. Arguments: a folder for results, then JOB=URL.

The first fit ends by an error after its first epoch, the second one resumes it from a distributed
checkpoint, and the third is a trial of its own. Each rank writes what it saw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from programs import AfterEpoch, Data, Net, StepMeter, crash, trainer, zeus
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

FOLDER = Path(sys.argv[1])


class Sharded(Net):
    """Its weights are sharded over the ranks, each of which trains on data of its own."""

    def configure_model(self) -> None:
        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])


def fit(job: str, url: str, *callbacks: Callback, ckpt_path: Path | None = None) -> dict[str, Any]:
    """Train, and return what this rank saw."""
    callback = zeus(url, meter=StepMeter(), job_id=job)
    strategy = ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo"
    )
    saves = ModelCheckpoint(FOLDER / "checkpoints", save_last=True)
    runner = trainer(
        callback, saves, *callbacks, strategy=strategy, devices=2, enable_checkpointing=True
    )
    net, error = Sharded((0.1, 0.2, 0.9) if ckpt_path is None else (0.2, 0.9)), None
    try:
        runner.fit(net, Data(), ckpt_path=ckpt_path)
    except ZeroDivisionError as caught:
        error = str(caught)
    return {
        "rank": runner.global_rank,
        "is_sharded": isinstance(net.layer.weight, DTensor),
        "error": error,
        "outcome": callback.outcome,
        "cost": callback.cost_j,
        "trial": callback.trial and callback.trial.trial_number,
        "batch_lengths": sorted(net.batch_lengths),
    }


if __name__ == "__main__":
    job, _, url = sys.argv[2].partition("=")
    fits = [
        fit(job, url, AfterEpoch(1, crash)),
        fit(job, url, ckpt_path=FOLDER / "checkpoints" / "last.ckpt"),
        fit(job, url),
    ]
    (FOLDER / f"{job}.{fits[0]['rank']}.json").write_text(json.dumps(fits))
