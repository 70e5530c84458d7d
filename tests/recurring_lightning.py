"""A recurring Lightning run whose default batch size fails where it is not the baseline."""

import sys
from typing import Any

from programs import Data, Net, StepMeter, trainer, zeus

from zeus_lightning import ZeusBSOCallback


class FailsOnDefault(Net):
    """Logs a metric that depends on the trial."""

    def on_fit_start(self) -> None:
        callback: Any = next(c for c in self.trainer.callbacks if isinstance(c, ZeusBSOCallback))
        fails = callback.job.policy != "default" and callback.trial.batch_size == 8
        self.val_acc = (0.1,) if fails else (0.9,)


if __name__ == "__main__":
    callback = zeus(None, job_id=sys.argv[1], meter=StepMeter(), on_failure="exit")
    trainer(callback, max_epochs=2).fit(FailsOnDefault(), Data(batch_size=8))
