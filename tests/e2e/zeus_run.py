"""One run of a recurring job under the Zeus project's own client, told what to do on stdin.

`epoch METRIC` ends an epoch, `raise` fails as a training script may; the end of the input ends the
script. Every epoch, and the start before them, is answered by a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from zeus.monitor import ZeusMonitor
from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec
from zeus.optimizer.batch_size.exceptions import ZeusBSOTrainFailError


class Monitor(ZeusMonitor):
    """Zeus's monitor, which need not wait for a CUDA device: there is a driver, but no CUDA."""

    def begin_window(self, key: str, sync_execution: bool = False, restart: bool = False) -> None:
        super().begin_window(key, sync_execution=False, restart=restart)

    def end_window(self, key: str, sync_execution: bool = False, cancel: bool = False) -> Any:
        return super().end_window(key, sync_execution=False, cancel=cancel)


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main(url: str, spec: str) -> None:
    optimizer = BatchSizeOptimizer(Monitor(cpu_indices=[]), url, JobSpec(**json.loads(spec)))
    batch_size = optimizer.get_batch_size()
    optimizer.on_train_begin()
    say(job_id=optimizer.job.job_id, batch_size=batch_size, trial_number=optimizer.trial_number)
    for line in sys.stdin:
        command, _, metric = line.strip().partition(" ")
        if command == "raise":
            raise RuntimeError("the training fails")
        try:
            optimizer.on_evaluate(float(metric))
        except ZeusBSOTrainFailError as error:
            say(finished=optimizer.training_finished, failed=str(error))
        else:
            say(finished=optimizer.training_finished, failed=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
