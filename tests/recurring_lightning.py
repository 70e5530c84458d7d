"""A recurring Lightning run that fails in the job's second trial."""

import sys
from typing import Any

from programs import Data, Net, StepMeter, trainer, zeus

from zeus_lightning import ZeusBSOCallback


class FailsOnce(Net):
    """Logs a metric that depends on the trial."""

    def on_fit_start(self) -> None:
        callback: Any = next(c for c in self.trainer.callbacks if isinstance(c, ZeusBSOCallback))
        self.val_acc = (0.1,) if callback.trial.trial_number == 2 else (0.9,)


if __name__ == "__main__":
    callback = zeus(None, job_id=sys.argv[1], meter=StepMeter())
    trainer(callback, max_epochs=2).fit(FailsOnce(), Data(batch_size=8))
