"""The trainings that `benchmarks/callback.py` measures, in processes of their own.

python benchmarks/callback_runs.py ends URL DEVICES    # under ddp where there are several
python benchmarks/callback_runs.py pairs URL EPOCH_S EPOCHS ROUNDS

Rank zero prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time
import warnings
from typing import Any
from uuid import uuid4

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from zeus_lightning import ZeusBSOCallback

BATCH_SIZE = 32
WIDTH = 256
VALIDATIONS = 200
STRATEGY_CALLS = ("all_gather", "barrier", "broadcast", "reduce", "reduce_boolean_decision")


class Noise(Dataset[torch.Tensor]):
    """As many samples as asked for, all the same."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample = torch.randn(WIDTH)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Net(LightningModule):
    """Reaches its target in the last epoch."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.batch_size = BATCH_SIZE
        self.samples = samples
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers(batch).pow(2).mean()

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val_acc", float(self.trainer.current_epoch + 1 == self.trainer.max_epochs))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(Noise(self.samples), batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(Noise(self.trainer.world_size * BATCH_SIZE), batch_size=BATCH_SIZE)


class TimedZeus(ZeusBSOCallback):
    """Times what it does for each validation, and counts the strategy calls of that."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.ms: list[float] = []
        self.calls: list[int] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return super().on_validation_end(trainer, pl_module)
        trainer.strategy.barrier()  # waiting for a slower rank is no work of the callback's
        self.calls.append(0)
        for name in STRATEGY_CALLS:
            setattr(trainer.strategy, name, self._counted(getattr(trainer.strategy, name)))
        began_s = time.perf_counter()
        super().on_validation_end(trainer, pl_module)
        self.ms.append(1e3 * (time.perf_counter() - began_s))
        for name in STRATEGY_CALLS:
            delattr(trainer.strategy, name)
        return None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        began_s = time.perf_counter()
        super().on_train_epoch_end(trainer, pl_module)
        self.ms[-1] += 1e3 * (time.perf_counter() - began_s)

    def _counted(self, call: Any) -> Any:
        def function(*args: Any, **arguments: Any) -> Any:
            self.calls[-1] += 1
            return call(*args, **arguments)

        return function


class Stopwatch(Callback):
    """Starts before the callback beside it does."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.began_s, self.began_cpu_s = time.perf_counter(), time.process_time()


def zeus(url: str, kind: type[ZeusBSOCallback] = ZeusBSOCallback) -> ZeusBSOCallback:
    """The callback of a job of its own, with one batch size."""
    job_id = f"benchmark-{uuid4().hex}"
    return kind(
        url,
        target_metric=1.0,
        job_id=job_id,
        batch_size_scope="per_device",
        batch_sizes=[BATCH_SIZE],
    )


def trainer(*callbacks: Callback, **arguments: Any) -> Trainer:
    """A quiet Trainer."""
    return Trainer(
        callbacks=list(callbacks),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )


def ends(url: str, devices: int) -> None:
    """Train many short epochs."""
    callback = zeus(url, TimedZeus)
    assert isinstance(callback, TimedZeus)
    strategy = "ddp" if devices > 1 else "auto"
    runner = trainer(callback, max_epochs=VALIDATIONS, devices=devices, strategy=strategy)
    runner.fit(Net(samples=devices * BATCH_SIZE))
    if runner.is_global_zero:
        print(json.dumps({"ms": callback.ms, "calls": callback.calls}))


def train(samples: int, epochs: int, *callbacks: Callback) -> dict[str, float]:
    """Seconds from the start of training to the end of fit, and CPU seconds of all threads."""
    gc.collect()
    watch = Stopwatch()
    trainer(watch, *callbacks, max_epochs=epochs, devices=1).fit(Net(samples))
    return {
        "s": time.perf_counter() - watch.began_s,
        "cpu_s": time.process_time() - watch.began_cpu_s,
    }


def pairs(url: str, epoch_s: float, epochs: int, rounds: int) -> None:
    """Train thrice in each round, with the callback and twice without, in turns of order."""
    train(100 * BATCH_SIZE, 1)  # what only the first run has to do
    batches = 400
    cpu_s = train(batches * BATCH_SIZE, 1)["cpu_s"]  # seconds would be those of the load
    samples = int(batches * epoch_s / cpu_s) * BATCH_SIZE
    measured: dict[str, list[dict[str, float]]] = {"with": [], "without": [], "again": []}
    for number in range(rounds):
        names = list(measured)
        for name in names[number % 3 :] + names[: number % 3]:
            callbacks = [zeus(url)] if name == "with" else []
            measured[name].append(train(samples, epochs, *callbacks))
    print(json.dumps(measured))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # more would only make the figures noisier
    what, url, *rest = sys.argv[1:]
    if what == "ends":
        ends(url, int(rest[0]))
    else:
        pairs(url, float(rest[0]), int(rest[1]), int(rest[2]))
