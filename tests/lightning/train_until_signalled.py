"""Trains until it is signalled, or its metric reaches the target, and saves each epoch.

Arguments: the service's URL, a job id, the metric's value, and a checkpoint to resume from.
"""

import signal
import sys
import time
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import Data, Net, trainer, zeus


class SayTraining(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.current_epoch == 1:
            print("training", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
    url, job_id, val_acc, *ckpt_path = sys.argv[1:]
    callback = zeus(url, job_id=job_id, max_epochs=10**6)
    saver = ModelCheckpoint(".", "last", enable_version_counter=False)
    runner = trainer(callback, SayTraining(), saver, max_epochs=-1, enable_checkpointing=True)
    runner.fit(Net((float(val_acc),)), Data(64), ckpt_path=ckpt_path[0] if ckpt_path else None)
