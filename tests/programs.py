"""Small Lightning programs to train, and how to look at what the service knows of them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import requests
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader, TensorDataset
from waiting import LIMIT_S

from zeus_lightning import Recurrence, ZeusBSOCallback
from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import Reading

FOUR: dict[str, Any] = {"batch_sizes": [4], "default_batch_size": 4}
"""A job with one batch size, where programs have 8."""

_ids = itertools.count()


def new_job() -> str:
    """A job id no other test uses."""
    return f"job-{next(_ids)}-{time.monotonic_ns()}"


class Net(LightningModule):
    """Logs `val_acc` as scripted, one value per validation; the last one repeats."""

    def __init__(self, val_acc: tuple[float, ...] = (0.1, 0.2, 0.9)) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.val_acc = val_acc
        self.validations = 0
        self.batch_lengths: set[int] = set()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.batch_lengths.add(len(batch[0]))
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_acc", self.val_acc[min(self.validations, len(self.val_acc) - 1)])

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=getattr(self, "lr", 0.01))


class Whole(Net):
    """Can be tested and can predict, too."""

    def test_step(self, batch: Any, index: int) -> None:
        pass

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.layer(batch[0])


class TrainAcc(Net):
    """Logs the values of `val_acc` as `train_acc`, too: one in each training epoch."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        value = self.val_acc[min(self.trainer.current_epoch, len(self.val_acc) - 1)]
        self.log("train_acc", value, on_step=False, on_epoch=True)
        return super().training_step(batch, index)


class Data(LightningDataModule):
    """64 samples, trained in batches of `batch_size`."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.samples = TensorDataset(torch.randn(64, 4))

    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=32)


class StepMeter:
    """A meter on which every reading is `energy_j` joules and `time_s` seconds after the last."""

    name = "step"
    device_model = "step"
    max_power_w = 10.0
    is_estimate = False

    def __init__(self, energy_j: float = 6.0, time_s: float = 2.0) -> None:
        self._steps: Iterator[int] = itertools.count()
        self.energy_j = energy_j
        self.time_s = time_s

    @property
    def devices(self) -> tuple[str, ...]:
        return (f"step {os.getpid()}",)  # each rank's is its own

    def read(self) -> Reading:
        step = next(self._steps)
        return Reading(energy_j=step * self.energy_j, time_s=step * self.time_s)

    def close(self) -> None:
        pass


class Dying(StepMeter):
    """Cannot be read any more after so many seconds."""

    def __init__(self, after_s: float, error: Exception | None = None) -> None:
        super().__init__()
        self.after_s = after_s
        self.error = error or ZeusMeterError("GPU 0 is lost")

    def read(self) -> Reading:
        reading = super().read()
        if reading.time_s > self.after_s:
            raise self.error
        return reading


class OfTheNode(StepMeter):
    """Counts a whole node, as RAPL does."""

    devices = ("package-0",)


def is_rank_one() -> bool:
    """Whether this is rank 1, by torch: a meter has no Trainer."""
    return torch.distributed.get_rank() == 1


class BrokenOnRankOne(StepMeter):
    """Fails on rank 1 at a given reading."""

    def __init__(self, at_reading: int) -> None:
        super().__init__()
        self.left = at_reading

    def read(self) -> Reading:
        self.left -= 1
        if self.left <= 0 and is_rank_one():
            raise ZeusMeterError("GPU 1 is lost")
        return super().read()


class WorkMeter(Callback):
    """A meter that counts 3 J and 1 s for each training step; a callback, to see them."""

    name = "work"
    devices = ("steps",)
    device_model = "steps"
    max_power_w = 10.0
    is_estimate = False

    def __init__(self) -> None:
        self.steps = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.steps += 1

    def read(self) -> Reading:
        return Reading(energy_j=self.steps * 3.0, time_s=self.steps * 1.0)

    def close(self) -> None:
        pass


class Raise(Callback):
    """Raises an error at the end of the first training batch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_batch_end(self, *args: Any) -> None:
        raise self.error


def crash() -> None:
    """Raise an error, as a program with a mistake does."""
    raise ZeroDivisionError("mine")


def interrupt() -> None:
    """Raise what Ctrl-C does."""
    raise KeyboardInterrupt


class AfterEpoch(Callback):
    """Calls something when an epoch, counted from 1, has been validated and saved."""

    def __init__(self, epoch: int, call: Callable[[], object]) -> None:
        self.epoch = epoch
        self.call = call

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.current_epoch == self.epoch:
            self.call()


class AfterStep(Callback):
    """Calls something once after a step, counted from 1, or after each one from there on."""

    def __init__(self, step: int, call: Callable[[], object], *, each: bool = False) -> None:
        self.step = step
        self.call = call
        self.each = each
        self.called = False

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step >= self.step and (self.each or not self.called):
            self.called = True
            self.call()


class BreaksOnException(Raise):
    """Raises another one where it is told of it: callbacks after it are not told."""

    def on_exception(self, *args: Any) -> None:
        raise OSError("in on_exception")


class LoadsLate(SingleDeviceStrategy):
    """Loads a checkpoint after `configure_optimizers`, as FSDP and DeepSpeed do."""

    restore_checkpoint_after_setup = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))


class Steps(Callback):
    """Counts training steps."""

    count = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.count += 1


def zeus(
    url: str | None, kind: type[ZeusBSOCallback] = ZeusBSOCallback, **arguments: Any
) -> ZeusBSOCallback:
    """The callback, or one made from it, with what every test would have to say."""
    # the choices of `zeus` are known beforehand while it explores
    defaults = {
        "target_metric": 0.8,
        "monitor": "val_acc",
        "meter": StepMeter(),
        "job_id": new_job(),
        "policy": "zeus",
    }
    return kind(url, **(defaults | arguments))


def recurrence(url: str | None, job_id: str | None, **arguments: Any) -> Recurrence:
    """A run of a loop, with what every test would have to say."""
    defaults: dict[str, Any] = {
        "target_metric": 0.9,
        "mode": "max",
        "batch_sizes": [8, 16],
        "default_batch_size": 16,
        "max_epochs": 4,
        "meter": StepMeter(),
    }
    return Recurrence(url, job_id=job_id, **(defaults | arguments))


def trainer(*callbacks: Callback, kind: type[Trainer] = Trainer, **arguments: Any) -> Trainer:
    """A quiet Trainer on the CPU, or one of another package."""
    defaults: dict[str, Any] = {
        "max_epochs": 5,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return kind(callbacks=list(callbacks), **(defaults | arguments))


def trials(url: str, job_id: str) -> list[dict[str, Any]]:
    """A job's trials as the service knows them; none when it does not know the job."""
    answer = requests.get(f"{url}/api/v1/jobs/{job_id}/trials", timeout=LIMIT_S)
    return [] if answer.status_code == 404 else answer.json()["trials"]


def outcomes(url: str, job_id: str) -> list[str | None]:
    """How a job's trials ended; None: still open."""
    return [trial["outcome"] for trial in trials(url, job_id)]
