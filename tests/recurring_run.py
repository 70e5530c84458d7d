"""A run of a recurring job without Lightning: a real trial, and the outcome file of one.

Arguments: a job id, and what the run does: `converge`; `kill` itself; `fail`, and kill itself
before it writes that; `break` as a rank on another node fails; `wait` until there is a file `go`
in the working folder, then converge; or `train`, followed by the metric of each trial, to at least
0.9. A SIGTERM interrupts it, and a SIGUSR1 ends it as converged without the service.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from zeus_lightning.client import BSOClient
from zeus_lightning.environment import is_control
from zeus_lightning.messages import Hardware, JobSpec, Report


def main(job_id: str, what: str, *metrics: str) -> None:
    client = BSOClient(os.environ["ZEUS_SERVER_URL"])
    job = JobSpec(
        job_id=job_id,
        batch_sizes=[8, 16, 32],
        default_batch_size=16,
        target_metric=0.9,
        higher_is_better=True,
        monitor="val_acc",
        max_epochs=5,
        policy=None if what == "train" else "default",
    )
    client.register_job(job)
    hardware = Hardware(
        device_model="none", num_devices=1, max_power_w=100.0, meter="none", estimated=False
    )
    trial = client.start_trial(job_id, uuid4().hex, hardware, control=is_control())

    def write(outcome: str | None, report: Report | None = None) -> None:
        record: dict[str, Any] = {"trial": trial.to_json(), "outcome": outcome, "report": None}
        if report is not None:
            record |= {"report": report.to_json(), "cost_j": report.cost(job, hardware)}
        record |= {"job": job.to_json(), "hardware": hardware.to_json()}
        record |= {"spent": {"energy_j": 0.0, "time_s": 0.0}, "unsent": []}
        Path(os.environ["ZEUS_OUTCOME_FILE"]).write_text(json.dumps(record))

    def interrupt(*_: object) -> None:
        print("ending", flush=True)
        time.sleep(0.5)
        client.end_trial(trial, "interrupted", "SIGTERM")
        write("interrupted")
        sys.exit(143)

    def converge_without_the_service(*_: object) -> None:
        write("converged")
        os._exit(0)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGUSR1, converge_without_the_service)
    write(None)
    print("training", flush=True)
    if what in ("fail", "break"):
        client.end_trial(trial, "out_of_memory", "of a test")
    if what == "break":
        write("errored")
        sys.exit(1)
    if what in ("kill", "fail"):
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "wait" and not Path("go").exists():
        time.sleep(0.01)
    metric = float(metrics[trial.trial_number - 1]) if metrics else 0.95
    epoch, outcome = 0, None
    while outcome is None:
        epoch += 1
        report = Report(
            sequence=epoch, epoch=epoch, time_s=0.1 * epoch, energy_j=4.0 * epoch, metric=metric
        )
        outcome = client.report(trial, report).outcome
        write(outcome, report)
    sys.exit(outcome != "converged")


if __name__ == "__main__":
    main(*sys.argv[1:])
