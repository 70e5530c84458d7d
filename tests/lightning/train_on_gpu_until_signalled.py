"""Trains without end on a GPU of the fake driver, to be signalled. Argument: its NVML index."""

import signal
import sys
import time
from typing import Any

from gpu_programs import ManyBatches, power
from lightning.pytorch import Callback
from programs import Net, trainer


class PrintTraining(Callback):
    printed = False

    def on_train_batch_end(self, *args: Any) -> None:
        if callback.profiled and not self.printed:
            self.printed = True
            print("training", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
    callback = power(meter=f"nvml:{sys.argv[1]}", step_w=100)
    trainer(callback, PrintTraining(), max_epochs=-1).fit(Net(), ManyBatches(10_000))
