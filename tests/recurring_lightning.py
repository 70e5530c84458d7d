"""A recurring Lightning run of two epochs.

Arguments: a job id; a target, or `learned`; the metric of each trial, of which the last repeats.
"""

import sys
from typing import Any

from programs import Data, Net, StepMeter, trainer, zeus

from zeus_lightning import ZeusBSOCallback


class Scripted(Net):
    """Logs a metric that depends on the trial."""

    def on_fit_start(self) -> None:
        callback: Any = next(c for c in self.trainer.callbacks if isinstance(c, ZeusBSOCallback))
        metrics = list(map(float, sys.argv[3:]))
        self.val_acc = (metrics[min(callback.trial.trial_number, len(metrics)) - 1],)


def main() -> None:
    target = None if sys.argv[2] == "learned" else float(sys.argv[2])
    callback = zeus(None, job_id=sys.argv[1], target_metric=target, meter=StepMeter())
    trainer(callback, max_epochs=2).fit(Scripted(), Data(batch_size=8))


if __name__ == "__main__":
    main()
