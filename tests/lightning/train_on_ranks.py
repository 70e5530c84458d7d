"""Runs one or more fits on several ranks. Arguments: a folder for results, then SCENARIO=URL each.

`$TRAINER_ARGUMENTS` are the Trainer's; with `$LET_THROUGH`, an error ends its rank. Each rank
writes what it saw of each fit to `SCENARIO.RANK.json`; for ranks that are spawned or forked, the
process that started them does.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pynvml
import torch
from calls import Calls, recorded_calls
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from programs import (
    AfterEpoch,
    BrokenOnRankOne,
    Data,
    Net,
    OfTheNode,
    Raise,
    StepMeter,
    Steps,
    Whole,
    crash,
    is_rank_one,
    trainer,
    zeus,
)
from torch.utils.data import DataLoader, Subset

import zeus_lightning
from zeus_lightning import ZeusBSOCallback, ZeusEnergyCallback
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.run import run_meter

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
FOLDER = Path(sys.argv[1])
STRATEGY_CALLS = ("all_gather", "barrier", "broadcast", "reduce", "reduce_boolean_decision")
TRAINER_ARGUMENTS = json.loads(os.environ["TRAINER_ARGUMENTS"])


class NetThatLogsOnRankZero(Net):
    def validation_step(self, batch: Any, index: int) -> None:
        value = self.val_acc[min(self.validations, len(self.val_acc) - 1)]
        self.log("val_acc", value, rank_zero_only=True)


class Shards(Data):
    """Data of its own on each rank: none on rank 0, and of rank 1 the half."""

    def train_dataloader(self) -> Any:
        rank = self.trainer.global_rank  # type: ignore[union-attr]
        own = Subset(self.samples, range(6 * rank))
        return DataLoader(own, batch_size=self.batch_size, drop_last=True)


class RaiseOnRank(Callback):
    """Raises an error on one rank as the first training batch ends."""

    def __init__(self, rank: int, error: BaseException) -> None:
        self.rank = rank
        self.error = error

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_rank == self.rank:
            raise self.error


class Endless(Callback):
    """Makes a file when all ranks have come to their second epoch, and never lets them end."""

    def __init__(self, name: str) -> None:
        self.begun = FOLDER / f"{name}.begun"

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        time.sleep(0.01)
        if trainer.current_epoch == 1:
            trainer.strategy.barrier()
            self.begun.touch()


class CpuSeconds(Callback):
    """Works for some CPU time in each step, and writes what each rank has used by each report."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.began_s = time.process_time()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        end_s = time.process_time() + 0.1
        while time.process_time() < end_s:
            pass
        trainer.strategy.barrier()  # each reads its meter at about the same time as the other

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            path = FOLDER / "cpu" / f"{self.name}.{trainer.global_rank}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(time.process_time() - self.began_s))


class OddOnRankOne(StepMeter):
    """Raises an error that is not ours on rank 1 when its power is read."""

    @property
    def max_power_w(self) -> float:
        if is_rank_one():
            raise RuntimeError("mine")
        return 10.0


class CountedZeus(ZeusBSOCallback):
    """Records its calls of the strategy at each validation end."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.strategy_calls: list[list[str]] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        made: list[str] = []

        def counted(name: str, call: Any) -> Any:
            return lambda *args, **arguments: (made.append(name), call(*args, **arguments))[1]

        for name in STRATEGY_CALLS:
            setattr(trainer.strategy, name, counted(name, getattr(trainer.strategy, name)))
        super().on_validation_end(trainer, pl_module)
        for name in STRATEGY_CALLS:
            delattr(trainer.strategy, name)
        if not trainer.sanity_checking:
            self.strategy_calls.append(made)


def own_gpu(apart: int = 1) -> str:
    """Each rank's own GPU, by its local rank, which the launcher sets."""
    return f"nvml:{apart * int(os.environ.get('LOCAL_RANK', '0'))}"


class RaisesWarningOfTarget(Callback):
    """Lets the warning of a likely mistake in the target be an error."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        warnings.filterwarnings("error", "zeus: the first validation")


class RaiseInSecondEpoch(Callback):
    """Raises an error on all ranks, and forgets the calls of the service made before."""

    calls = Calls()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            self.calls.clear()
            raise ZeroDivisionError("mine")


def fit(
    name: str,
    url: str,
    net: Net,
    *others: Callback,
    ckpt_path: Path | None = None,
    data: type[Data] = Data,
    passes: bool = False,
    strategy: Strategy | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Train, also on dataloaders that are passed to fit, and return what was seen."""
    callback = zeus(
        url, CountedZeus, **({"job_id": os.environ.get("ZEUS_JOB_ID", name)} | arguments)
    )
    assert isinstance(callback, CountedZeus)
    error, steps = None, Steps()
    saves = any(isinstance(other, ModelCheckpoint) for other in others)
    options = TRAINER_ARGUMENTS | ({} if strategy is None else {"strategy": strategy})
    runner = trainer(*others, callback, steps, enable_checkpointing=saves, **options)
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        recorded_calls() as RaiseInSecondEpoch.calls,
    ):
        try:
            source = data(batch_size=8)
            if passes:
                runner.fit(net, source.train_dataloader(), source.val_dataloader())
            else:
                runner.fit(net, source, ckpt_path=ckpt_path)
        except Exception as caught:
            if "LET_THROUGH" in os.environ:
                raise
            error = [type(caught).__name__, str(caught)]
    return {
        "error": error,
        "calls": asdict(RaiseInSecondEpoch.calls),
        "warnings": [str(warning.message) for warning in warned],
        "strategy_calls": callback.strategy_calls,
        "steps": steps.count,
        "batch_lengths": sorted(net.batch_lengths),
        "trial": callback.trial and callback.trial.to_json(),
        "job": callback.job and callback.job.to_json(),
        "report": callback.last_report and callback.last_report.to_json(),
        "outcome": callback.outcome,
        "cost": callback.cost_j,
        "rank": runner.global_rank,
    }


def meter(name: str, url: str, choice: str | EnergyMeter) -> dict[str, Any]:
    """Train one epoch with a meter."""
    return fit(name, url, Net((0.9,)), CpuSeconds(name), meter=choice)


def unopened(name: str, url: str) -> dict[str, Any]:
    """Train with a GPU of each rank, of which rank 1 has none."""
    seen, is_open = fit(name, url, Net(), meter=own_gpu(apart=9)), True
    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        is_open = False
    return seen | {"nvml_is_open": is_open}


def resume(name: str, url: str) -> dict[str, Any]:
    """Train, fail, and resume from the checkpoint."""
    saver = ModelCheckpoint(FOLDER / name, "first")
    broken = fit(name, url, Net((0.1,)), saver, RaiseInSecondEpoch())
    return fit(name, url, Net((0.9,)), ckpt_path=FOLDER / name / "first.ckpt") | {"broken": broken}


class Sharded(Net):
    """Its weights are sharded over the ranks, each of which trains on data of its own."""

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard  # takes a second

        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])


def sharded(name: str, url: str) -> dict[str, Any]:
    """Train sharded and fail, resume from the distributed checkpoint, and train a second trial."""
    from torch.distributed.tensor import DTensor

    runs, shards = [], FOLDER / name / "last.ckpt"
    for metrics, others, ckpt_path in (
        ((0.1, 0.2, 0.9), [AfterEpoch(1, crash)], None),
        ((0.2, 0.9), [], shards),
        ((0.1, 0.2, 0.9), [], None),
    ):
        strategy = ModelParallelStrategy(2, 1, process_group_backend="gloo")
        saver, net = ModelCheckpoint(shards.parent, save_last=True), Sharded(metrics)
        seen = fit(name, url, net, saver, *others, ckpt_path=ckpt_path, strategy=strategy)
        runs.append(seen | {"is_sharded": isinstance(net.layer.weight, DTensor)})
    return runs[-1] | {"runs": runs}


def retries(name: str, url: str) -> dict[str, Any]:
    """Train with `zeus_lightning.fit`; the first batch size fails."""
    metrics = iter((0.1, 0.9))
    arguments = {"batch_sizes": [16, 32], "default_batch_size": 16, "meter": StepMeter()}
    runner = zeus_lightning.fit(
        lambda: trainer(zeus(url, job_id=name, **arguments), max_epochs=2, **TRAINER_ARGUMENTS),
        lambda: Net((next(metrics),)),
        Data,
    )
    return {"rank": runner.global_rank, "warnings": []}


def learns(name: str, url: str) -> dict[str, Any]:
    """Train a job that is given no target: two baselines, and a run that stops at what they set."""
    runs = []
    for metrics in ((0.3, 0.9, 0.5), (0.9,), (0.3, 0.9)):
        arguments = {"job_id": name, "target_metric": None, "baseline_runs": 2}
        runs.append(fit(name, url, Net(metrics), **arguments))
    return runs[-1] | {"runs": runs}


class Lines(logging.Handler):
    """Keeps the lines of ours that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("zeus: "):
            self.kept.append(record.getMessage())


class TestedData(Data):
    test_dataloader = Data.val_dataloader


def energy(name: str, meter: EnergyMeter, *others: Callback) -> dict[str, Any]:
    """Train two epochs, and test, with `ZeusEnergyCallback`."""
    callback, net, data, lines = ZeusEnergyCallback(meter), Whole(), TestedData(), Lines()
    runner = trainer(callback, *others, **(TRAINER_ARGUMENTS | {"max_epochs": 2}))
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    log.addHandler(lines)
    host = f"node-{runner.local_rank}" if name == "energy-two-nodes" else run_meter._host()
    seen: dict[str, Any] = {"rank": runner.global_rank, "lines": lines.kept, "error": None}
    with (
        warnings.catch_warnings(record=True, action="always") as warned,
        patch.object(run_meter, "_host", lambda: host),
    ):
        try:
            runner.fit(net, data)
            seen["logged"] = {key: float(value) for key, value in runner.callback_metrics.items()}
            seen["spent"] = [callback.spent.energy_j, callback.spent.time_s]
            seen["tested"] = runner.test(net, data, verbose=False)
        except ZeroDivisionError as caught:
            seen["error"] = str(caught)
    log.removeHandler(lines)
    return seen | {"warnings": [str(warning.message) for warning in warned]}


SCENARIOS: dict[str, Any] = {
    "energy-combined": lambda n, url: energy(n, CombinedMeter(StepMeter(), OfTheNode())),
    "energy-two-nodes": lambda n, url: energy(n, OfTheNode()),
    "energy-error": lambda n, url: energy(n, StepMeter(), Raise(ZeroDivisionError("mine"))),
    "converges": lambda n, url: fit(n, url, NetThatLogsOnRankZero()),
    "fails": lambda n, url: fit(n, url, Net((0.1,))),
    "percent": lambda n, url: fit(n, url, Net((85.0,)), RaisesWarningOfTarget()),
    "without": lambda n, url: fit(n, url, Net(), require_service=False),
    "shards": lambda n, url: fit(n, url, Net(), data=Shards),
    "passes": lambda n, url: fit(
        n, url, Net(), passes=True, batch_sizes=[8, 16], default_batch_size=8
    ),
    "per-device": lambda n, url: fit(n, url, Net(), batch_size_scope="per_device"),
    "meter-odd": lambda n, url: fit(n, url, Net(), meter=OddOnRankOne()),
    "meter-at-start": lambda n, url: fit(n, url, Net(), meter=BrokenOnRankOne(1)),
    "meter-later": lambda n, url: fit(n, url, Net((0.1,)), meter=BrokenOnRankOne(3)),
    "meter-node": lambda n, url: fit(n, url, Net((0.9,)), meter=OfTheNode()),
    "given-up": lambda n, url: fit(
        n, url, Net((0.1,)), CpuSeconds(n), meter="cpu-estimate", max_epochs=1
    ),
    "learns": learns,
    "meter-gpus": lambda n, url: meter(n, url, own_gpu()),
    "meter-models": lambda n, url: meter(n, url, own_gpu(apart=2)),
    "meter-shared-gpu": lambda n, url: meter(n, url, "nvml:0"),
    "meter-unopened": unopened,
    "memory-1": lambda n, url: fit(
        n, url, Net(), RaiseOnRank(1, torch.OutOfMemoryError("CUDA out of memory."))
    ),
    "bug-0": lambda n, url: fit(n, url, Net(), RaiseOnRank(0, ZeroDivisionError("mine"))),
    "bug": lambda n, url: fit(n, url, Net((0.1,)), RaiseInSecondEpoch()),
    "out-of-time": lambda n, url: fit(n, url, Net((0.1,)), Timer({"microseconds": 1})),
    "endless": lambda n, url: fit(n, url, Net((0.1,)), Endless(n), max_epochs=10**6),
    "resumes": resume,
    "retries": retries,
    "sharded": sharded,
    "nobody": lambda n, url: fit(n, url, Net()),
}

if __name__ == "__main__":
    for scenario in sys.argv[2:]:
        name, _, url = scenario.partition("=")
        kind = name.partition("@")[0]  # `converges@slow` trains as `converges` does
        seen = SCENARIOS[kind](name.replace("@", "-"), url)
        (FOLDER / f"{name}.{seen['rank']}.json").write_text(json.dumps(seen))
