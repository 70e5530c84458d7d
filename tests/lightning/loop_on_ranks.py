"""Runs loops under Fabric on several ranks. Arguments: a folder, then SCENARIO=URL each.

`$TRAINER_ARGUMENTS` are Fabric's. Each rank writes what it saw of each loop to
`SCENARIO.RANK.json`, but for scenarios whose error ends the rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import programs
import pynvml
import pytest
import torch
from gpu_programs import SAME_TIME, EachLimit
from lightning.fabric import Fabric

from zeus_lightning import PowerLimit, Recurrence, ZeusError
from zeus_lightning.power.restore import Record, records_folder

FOLDER = Path(sys.argv[1])


def recurrence(url: str, job_id: str, **arguments: Any) -> Recurrence:
    return programs.recurrence(url, job_id, fabric=fabric, policy="zeus", **arguments)


def train(model: Any) -> None:
    """A batch with a collective in it, as data-parallel training has them."""
    model(torch.ones(2, 4)).sum().backward()


def loop(run: Recurrence, *metrics: float) -> int:
    """Train and report until the loop is stopped; returns how often it reported."""
    model = fabric.setup(torch.nn.Linear(4, 1))
    with run:
        for count, metric in enumerate(metrics, 1):
            train(model)
            if run.report(metric).stop:
                return count
    return len(metrics)


def resumes(url: str, job_id: str) -> Recurrence:
    run, state = recurrence(url, job_id), {}
    try:
        with run:
            run.report(0.1)
            state = json.loads(json.dumps(run.state_dict()))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        fabric.barrier()  # or one rank resumes a trial that the other is still ending
    # as a checkpoint is on the first node's disk only
    run = recurrence(url, job_id, state=state if fabric.is_global_zero else None)
    loop(run, 0.95)
    return run


def leaves_early(run: Recurrence) -> None:
    """Rank 1 stops by its own metric, while rank 0 reports again."""
    with run:
        for count in range(1, 5):
            run.report(0.1)
            if fabric.global_rank == 1 and count == 2:
                break


def runs_out_of_memory_on_one(url: str, job_id: str) -> None:
    """Rank 1 runs out of memory, while rank 0 trains on."""
    model = fabric.setup(torch.nn.Linear(4, 1))
    with recurrence(url, job_id) as run:
        run.report(0.1)
        if fabric.global_rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        while True:
            train(model)


def sets_power_limits(url: str, job_id: str) -> dict[str, Any]:
    """Search for the limit of this rank's GPU; rank 1's is slower."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(fabric.global_rank)
    limits_w = []
    run = recurrence(url, job_id)
    power = PowerLimit(
        selector=EachLimit(),
        step_w=100,
        warmup_steps=2,
        profile_steps=4,
        min_seconds=0.01,
        meter=f"nvml:{fabric.global_rank}",
        fabric=fabric,
        run=run,
        steps=40,
    )
    with run, power:
        for batch in range(1, 41):
            limits_w.append(pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000)
            time.sleep(0.002 * (1 + fabric.global_rank))
            power.step()
            if batch == 20:
                power.pause()
        run.report(0.95)
    return {
        "limits_w": limits_w,
        "limit_w": power.limit_w,
        "profile": power.profile and power.profile.to_json() | SAME_TIME,
        "after_w": pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
    }


def observes() -> None:
    """Run a control trial; rank 1 finds the record of a killed run, and its warning is an error."""
    pynvml.nvmlInit()
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(fabric.global_rank))
    if fabric.global_rank == 1:
        left = Record(uuid=uuid, pid=1, process_started_at=0.0, found_mw=250_000)
        records_folder().mkdir(parents=True, exist_ok=True)
        (records_folder() / f"{uuid}.json").write_text(json.dumps(asdict(left)))
    meter = f"nvml:{fabric.global_rank}"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("ZEUS_CONTROL", "1")
        warnings.filterwarnings("error", "zeus: the power limit of ")
        with PowerLimit(batch_size=8, meter=meter, fabric=fabric):
            pass


def scenario(name: str, url: str) -> dict[str, Any]:
    """Train, and return what this rank saw."""
    seen: dict[str, Any] = {"rank": fabric.global_rank, "error": None}
    run = recurrence(url, name)
    try:
        match name:
            case "converges":  # rank zero's metric counts
                seen["reports"] = loop(run, 0.1, 0.95 if fabric.is_global_zero else 0.2, 0.2)
            case "misses":
                seen["reports"] = loop(run, 0.1, 0.2)
            case "early":
                leaves_early(run)
            case "resumes":
                run = resumes(url, name)
            case "power":
                seen |= sets_power_limits(url, name)
            case "observes":
                observes()
            case "memory-1":
                runs_out_of_memory_on_one(url, name)
    except ZeusError as error:
        seen["error"] = [type(error).__name__, str(error)]
    return seen | {
        "local_batch_size": run.local_batch_size,
        "outcome": run.outcome,
        "cost": run.cost_j,
        "trial": run.trial and run.trial.trial_number,
    }


if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", **json.loads(os.environ["TRAINER_ARGUMENTS"]))
    fabric.launch()
    for argument in sys.argv[2:]:
        name, _, url = argument.partition("=")
        seen = scenario(name, url)
        (FOLDER / f"{name}.{fabric.global_rank}.json").write_text(json.dumps(seen))
