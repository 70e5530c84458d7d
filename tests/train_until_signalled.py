"""Train until a signal, or until the metric reaches the target, and save each epoch."""

import os
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import Data, Net, trainer, zeus


class InSecondEpoch(Callback):
    """Calls something at the end of each batch of the second epoch, in training without haste."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.current_epoch == 1:
            self.call()
        time.sleep(0.01)


def train(
    url: str, job_id: str, val_acc: float, call: Callable[[], object], ckpt_path: Path | None = None
) -> None:
    """Train, with checkpoints in the current folder."""
    callback = zeus(url, job_id=job_id, max_epochs=10**6)
    saver = ModelCheckpoint(".", "last", enable_version_counter=False)
    others = (InSecondEpoch(call), saver)
    runner = trainer(callback, *others, max_epochs=-1, enable_checkpointing=True)
    runner.fit(Net((val_acc,)), Data(64), ckpt_path=ckpt_path)


def train_until_signalled(folder: Path, url: str, job_id: str, begun: Event) -> None:
    """Train in a folder, short of the target, and set `begun` in the second epoch."""
    os.chdir(folder)
    train(url, job_id, 0.1, begun.set)
