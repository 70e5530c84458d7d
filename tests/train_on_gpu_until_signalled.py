"""Train without end on a GPU of the fake driver, to be signalled."""

import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from fake_nvml.library import load
from gpu_programs import ManyBatches, power
from lightning.pytorch import Callback
from programs import Net, trainer

from zeus_lightning import ZeusPowerLimitCallback


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
