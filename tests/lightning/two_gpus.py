"""Runs fits on two ranks, each with a GPU of the fake driver. Arguments: a folder, SCENARIO=...

Each rank writes what it saw of each fit to `SCENARIO.RANK.json`. A scenario may change what the
GPUs do: their state is in the file that $FAKE_NVML_STATE names. $STRATEGY is Lightning's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import pynvml
import torch
from fake_nvml import fail_elsewhere
from gpu_programs import SAME_TIME, ManyBatches, power
from lightning.pytorch import Callback, Trainer
from programs import Net, trainer

from zeus_lightning import ZeusError, ZeusPowerLimitCallback
from zeus_lightning.meters import Reading
from zeus_lightning.meters.nvml import NvmlMeter

RANK = int(os.environ.get("LOCAL_RANK", "0"))


class Gpu(Callback):
    """This rank's GPU: the limit in each batch, and what a scenario does to it."""

    def __init__(self) -> None:
        self.index = RANK
        self.limits_w: list[float] = []

    @property
    def handle(self) -> Any:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByIndex(self.index)

    def limit_w(self) -> float:
        return float(pynvml.nvmlDeviceGetPowerManagementLimit(self.handle)) / 1000

    def on_train_batch_start(self, *args: Any) -> None:
        time.sleep(0.002)

    def on_train_batch_end(self, *args: Any) -> None:
        self.limits_w.append(self.limit_w())


class GpuOfAChild(Gpu):
    """Of a rank that is spawned or forked: it has to leave what it saw in a file itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self.index = trainer.global_rank

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        (callback,) = [c for c in trainer.callbacks if isinstance(c, ZeusPowerLimitCallback)]
        seen = {
            "limits_w": self.limits_w,
            "limit_w": callback.limit_w,
            "profile": callback.profile.to_json() | SAME_TIME,
            "after_w": self.limit_w(),
        }
        (self.folder / f"child.{self.index}.json").write_text(json.dumps(seen))


class MeterOfAChild:
    """NVML's meter of this rank's GPU, opened in the process that asks it for anything."""

    name = "nvml"
    is_estimate = False
    devices = property(lambda self: self.nvml.devices)
    device_model = property(lambda self: self.nvml.device_model)
    max_power_w = property(lambda self: self.nvml.max_power_w)

    @cached_property
    def nvml(self) -> NvmlMeter:
        return NvmlMeter([torch.distributed.get_rank()])

    def read(self) -> Reading:
        return self.nvml.read()

    def close(self) -> None:
        self.nvml.close()


class RefusesOnRankOne(Gpu):
    """Rank 1's GPU takes no limit once the callback has seen that it would."""

    def setup(self, *args: Any, **arguments: Any) -> None:
        self.refuse(pynvml.NVML_ERROR_UNKNOWN)

    def teardown(self, *args: Any, **arguments: Any) -> None:
        self.refuse(0)

    def refuse(self, error: int) -> None:
        if RANK == 1:
            fail_elsewhere(Path(os.environ["FAKE_NVML_STATE"]), 1, "set_limit", error)


class ChangedByHand(Gpu):
    """Someone else changes the limit of rank 1's GPU alone, once."""

    def on_train_batch_end(self, *args: Any) -> None:
        if len(self.limits_w) == 10 and RANK == 1:
            pynvml.nvmlDeviceSetPowerManagementLimit(self.handle, 111_000)
        super().on_train_batch_end()


class SlowOnRankOne(Gpu):
    """Rank 1 takes longer for a batch."""

    def on_train_batch_start(self, *args: Any) -> None:
        time.sleep(0.02 if RANK == 1 else 0.002)


def fit(gpu: Gpu, **arguments: Any) -> dict[str, Any]:
    """Train, and return what this rank saw."""
    defaults: dict[str, Any] = {"meter": f"nvml:{RANK}", "step_w": 100, "min_seconds": 0.01}
    callback, error = power(**(defaults | arguments)), None
    # `gpu` last: it sees the limit after the callback has acted
    where = {"strategy": os.environ["STRATEGY"], "devices": 2}
    runner = trainer(callback, gpu, **where, max_epochs=1)
    with warnings.catch_warnings(record=True) as warned:
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
        "profile": callback.profile and callback.profile.to_json() | SAME_TIME,
        "profiled": callback.profiled,
        "after_w": gpu.limit_w(),
        "warnings": [str(w.message) for w in warned if str(w.message).startswith("zeus:")],
    }


def scenario(name: str, folder: Path) -> dict[str, Any]:
    match name:
        case "whole":
            return fit(Gpu(), profile_path=folder / "profile.json")
        case "known":  # after `whole`
            return fit(Gpu(), profile_path=folder / "profile.json")
        case "refused":  # after `whole`
            return fit(RefusesOnRankOne(), profile_path=folder / "profile.json")
        case "unusable":  # which rank zero alone learns
            (folder / "broken.json").write_text("{")
            known = {"selector": "zeus-cost", "profile_path": folder / "broken.json"}
            return fit(Gpu(), **known, step_w=25)
        case "children":
            return fit(GpuOfAChild(folder), meter=MeterOfAChild())
        case "changed":
            return fit(ChangedByHand())
        case "slow":
            return fit(SlowOnRankOne())
        case "ranges":
            return fit(Gpu(), meter=f"nvml:{2 * RANK}")
        case "permission":
            return fit(Gpu(), meter=f"nvml:{3 * RANK}", on_unavailable="raise")
        case "observe":
            return fit(Gpu(), meter=f"nvml:{3 * RANK}")
        case "mig":
            return fit(Gpu(), meter=f"nvml:{4 * RANK}")
        case "one_gpu":
            return fit(Gpu(), meter="nvml:0")
    raise ValueError(name)


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    for name in (each.rstrip("=") for each in names):
        seen = scenario(name, Path(folder))
        (Path(folder) / f"{name}.{seen['rank']}.json").write_text(json.dumps(seen))
