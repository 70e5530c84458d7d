"""Runs one or more fits on two ranks. Arguments: a folder for results, then SCENARIO=URL each.

Each rank writes what it saw of each fit to `SCENARIO-RANK.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from programs import Data, Net, StepMeter, Steps, trainer, zeus

from zeus_lightning import ZeusBSOCallback, ZeusError, ZeusMeterError


class NetThatLogsOnRankZero(Net):
    def validation_step(self, batch: Any, index: int) -> None:
        value = self.val_acc[min(self.validations, len(self.val_acc) - 1)]
        self.log("val_acc", value, rank_zero_only=True)


class OutOfMemoryOnRankOne(Callback):
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")


class BrokenOnRankOne(StepMeter):
    """Fails on rank 1 at a given reading."""

    def __init__(self, at_reading: int) -> None:
        super().__init__()
        self.left = at_reading

    def read(self) -> Any:
        self.left -= 1
        if self.left <= 0 and torch.distributed.get_rank() == 1:
            raise ZeusMeterError("GPU 1 is lost")
        return super().read()


class ClosedOnRankOne(StepMeter):
    """Cannot be asked for its facts on rank 1."""

    @property
    def max_power_w(self) -> float:
        if torch.distributed.get_rank() == 1:
            raise ZeusMeterError("GPU 1 cannot be opened")
        return 10.0


def fit(callback: ZeusBSOCallback, net: Net, *others: Callback) -> dict[str, Any]:
    """Train, and tell how it went."""
    error, steps = None, Steps()
    runner = trainer(callback, steps, *others, strategy="ddp", devices=2)
    try:
        runner.fit(net, Data(batch_size=8))
    except ZeusError as caught:
        error = [type(caught).__name__, str(caught)]
    return {
        "error": error,
        "steps": steps.count,
        "batch_lengths": sorted(net.batch_lengths),
        "trial": callback.trial and callback.trial.to_json(),
        "job": callback.job and callback.job.to_json(),
        "report": callback.report and callback.report.to_json(),
        "outcome": callback.outcome,
        "rank": runner.global_rank,
    }


SCENARIOS: dict[str, Any] = {
    "converges": lambda url: fit(zeus(url, job_id="converges"), NetThatLogsOnRankZero()),
    "fails": lambda url: fit(zeus(url, job_id="fails"), Net((0.1,))),
    "nobody": lambda url: fit(zeus(url, job_id="nobody"), Net()),
    "uneven": lambda url: fit(zeus(url, job_id="uneven", batch_sizes=[16, 17, 19]), Net()),
    "meter-closed": lambda url: fit(
        zeus(url, job_id="meter-closed", meter=ClosedOnRankOne()), Net()
    ),
    "meter-at-start": lambda url: fit(
        zeus(url, job_id="meter-at-start", meter=BrokenOnRankOne(1)), Net()
    ),
    "meter-later": lambda url: fit(
        zeus(url, job_id="meter-later", meter=BrokenOnRankOne(3)), Net((0.1,))
    ),
    "memory": lambda url: fit(zeus(url, job_id="memory"), Net(), OutOfMemoryOnRankOne()),
}

if __name__ == "__main__":
    folder, *scenarios = sys.argv[1:]
    for scenario in scenarios:
        name, _, url = scenario.partition("=")
        seen = SCENARIOS[name](url)
        path = Path(folder) / f"{name}-{seen['rank']}.json"
        path.write_text(json.dumps(seen))
