"""Runs fits on two ranks, each with a GPU of the fake driver. Arguments: a folder, SCENARIO...

Each rank writes what it saw of each fit to `SCENARIO-RANK.json`. A scenario may change what the
GPUs do: their state is in the file that $FAKE_NVML_STATE names.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pynvml
from gpu_programs import ManyBatches, power
from lightning.pytorch import Callback
from programs import Net, trainer

from zeus_lightning import ZeusError

RANK = int(os.environ.get("LOCAL_RANK", "0"))


class Gpu(Callback):
    """This rank's GPU: the limit in each batch, and what a scenario does to it."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(RANK)
        self.limits_w: list[float] = []

    def limit_w(self) -> float:
        return float(pynvml.nvmlDeviceGetPowerManagementLimit(self.handle)) / 1000

    def on_train_batch_start(self, *args: Any) -> None:
        time.sleep(0.002)

    def on_train_batch_end(self, *args: Any) -> None:
        self.limits_w.append(self.limit_w())


class ChangedByHand(Gpu):
    """Somebody changes the limit of rank 1's GPU alone, once."""

    def on_train_batch_end(self, *args: Any) -> None:
        if len(self.limits_w) == 10 and RANK == 1:
            pynvml.nvmlDeviceSetPowerManagementLimit(self.handle, 111_000)
        super().on_train_batch_end()


class SlowOnRankOne(Gpu):
    """Rank 1 takes longer for a batch."""

    def on_train_batch_start(self, *args: Any) -> None:
        time.sleep(0.02 if RANK == 1 else 0.002)


def fit(gpu: Gpu, **arguments: Any) -> dict[str, Any]:
    """Train, and tell how it went."""
    defaults: dict[str, Any] = {"meter": f"nvml:{RANK}", "step_w": 100, "min_seconds": 0.01}
    callback, error = power(**(defaults | arguments)), None
    # `gpu` last: it sees the limit after the callback has acted
    runner = trainer(callback, gpu, strategy="ddp", devices=2, max_epochs=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            runner.fit(Net(), ManyBatches(batches=160, batch_size=4))  # half for each
        except ZeusError as caught:
            error = [type(caught).__name__, str(caught)]
    return {
        "rank": runner.global_rank,
        "error": error,
        "limits_w": gpu.limits_w,
        "limit_w": callback.limit_w,
        "profile": callback.profile and callback.profile.to_json(),
        "profiled": callback.profiled,
        "after_w": gpu.limit_w(),
        "told": [str(w.message) for w in told if str(w.message).startswith("zeus:")],
    }


def scenario(name: str, folder: Path) -> dict[str, Any]:
    match name:
        case "whole":
            return fit(Gpu(), profile_path=folder / "profile.json")
        case "known":  # after `whole`
            return fit(Gpu(), profile_path=folder / "profile.json")
        case "changed":
            return fit(ChangedByHand())
        case "slow":
            return fit(SlowOnRankOne())
        case "ranges":
            return fit(Gpu(), meter=f"nvml:{2 * RANK}")
        case "permission":
            return fit(Gpu(), meter=f"nvml:{3 * RANK}")
        case "observe":
            return fit(Gpu(), meter=f"nvml:{3 * RANK}", on_no_permission="observe")
        case "mig":
            return fit(Gpu(), meter=f"nvml:{4 * RANK}")
    raise ValueError(name)


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for name in names:
        seen = scenario(name, Path(folder))
        (Path(folder) / f"{name}-{seen['rank']}.json").write_text(json.dumps(seen))
