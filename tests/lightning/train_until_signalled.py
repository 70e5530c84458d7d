"""Trains without end, to be signalled. Arguments: the service's URL and a job id."""

import signal
import sys
import time
from typing import Any

from lightning.pytorch import Callback
from programs import Data, Net, trainer, zeus


class SayTraining(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if trainer.current_epoch == 1:
            print("training", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
    url, job_id = sys.argv[1:]
    callback = zeus(url, job_id=job_id, max_epochs=10**6)
    trainer(callback, SayTraining(), max_epochs=-1).fit(Net((0.1,)), Data(batch_size=64))
