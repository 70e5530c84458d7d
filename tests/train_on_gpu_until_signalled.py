"""Train without end on a GPU of the fake driver, to be signalled, with a Trainer or a loop."""

import signal
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from fake_nvml.driver import load
from gpu_programs import EachLimit, ManyBatches, power
from lightning.pytorch import Callback
from programs import Net, trainer

from zeus_lightning import PowerLimit, ZeusPowerLimitCallback


class SetWhenProfiled(Callback):
    """Sets an event when all limits are measured."""

    def __init__(self, callback: ZeusPowerLimitCallback, begun: Event) -> None:
        self.callback = callback
        self.begun = begun

    def on_train_batch_end(self, *args: Any) -> None:
        if self.callback.profiled:
            self.begun.set()
        time.sleep(0.01)


def train_on_gpu(library: Path, index: int, begun: Event) -> None:
    """Train with the callback on the GPU of an NVML index."""
    load(library)
    callback = power(meter=f"nvml:{index}", step_w=100)
    others = (SetWhenProfiled(callback, begun),)
    trainer(callback, *others, max_epochs=-1).fit(Net(), ManyBatches(10_000))


def loop_on_gpu(library: Path, index: int, begun: Event) -> None:
    """Do the same in a loop without a Trainer."""
    load(library)
    options = {"step_w": 100, "warmup_steps": 2, "profile_steps": 4, "min_seconds": 0.1}
    limit = PowerLimit(batch_size=8, selector=EachLimit(), meter=f"nvml:{index}", **options)
    try:
        with limit:
            while True:
                time.sleep(0.01)
                limit.step()
                if limit.profiled:
                    begun.set()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # multiprocessing has one status for all errors
