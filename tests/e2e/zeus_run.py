"""Runs of recurring jobs under the Zeus project's own client, told what to do on stdin.

It begins with a run of the job that the arguments URL and SPEC name, if they are given.
`begin URL SPEC` begins another run, `epoch METRIC` ends an epoch, `raise` fails as a training
script may; the end of the input ends the script. Each start of a run, and each epoch, is answered
by a line of JSON: a list, an object for each rank.

Under torchrun it is a data-parallel run as Zeus's README describes it: rank zero asks for a batch
size and broadcasts it with the trial's number; each rank reports what it has measured itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import httpx
from zeus.monitor import ZeusMonitor
from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec
from zeus.optimizer.batch_size.exceptions import ZeusBSOTrainFailError


class Monitor(ZeusMonitor):
    """Zeus's monitor, which need not wait for a CUDA device: there is a driver, but no CUDA."""

    def begin_window(self, key: str, sync_execution: bool = False, restart: bool = False) -> None:
        super().begin_window(key, sync_execution=False, restart=restart)

    def end_window(self, key: str, sync_execution: bool = False, cancel: bool = False) -> Any:
        return super().end_window(key, sync_execution=False, cancel=cancel)


# Zeus's client gives up after the 5 s that httpx waits by default, which a loaded machine exceeds.
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = 120

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

if WORLD_SIZE > 1:
    from torch import distributed

    distributed.init_process_group("gloo")


def broadcast(value: Any) -> Any:
    """Rank zero's value."""
    values = [value]
    if WORLD_SIZE > 1:
        distributed.broadcast_object_list(values)
    return values[0]


def say(**answer: Any) -> None:
    answers = [answer]
    if WORLD_SIZE > 1:
        answers *= WORLD_SIZE
        distributed.all_gather_object(answers, answer)
    if RANK == 0:
        print(json.dumps(answers), flush=True)


def commands() -> Iterator[str]:
    """Lines of rank zero's stdin, on every rank."""
    while line := broadcast(sys.stdin.readline() if RANK == 0 else None):
        yield line.strip()


# Each rank measures a GPU of its own, or the only one all of them.
monitor = Monitor(gpu_indices=None if WORLD_SIZE == 1 else [RANK], cpu_indices=[])


def begin(url: str, spec: str) -> BatchSizeOptimizer:
    """Begin a run."""
    optimizer = BatchSizeOptimizer(monitor, url, JobSpec(**json.loads(spec)), rank=RANK)
    if RANK == 0:
        optimizer.get_batch_size()
    optimizer.current_batch_size, optimizer.trial_number = broadcast(
        (optimizer.current_batch_size, optimizer.trial_number)
    )
    optimizer.on_train_begin()
    say(
        job_id=optimizer.job.job_id,
        batch_size=optimizer.current_batch_size,
        trial_number=optimizer.trial_number,
    )
    return optimizer


def main(*job: str) -> None:
    optimizer = begin(*job) if job else None
    for line in commands():
        command, _, arguments = line.partition(" ")
        if command == "raise":
            if RANK == 0:
                raise RuntimeError("the training fails")
            continue  # and wait for rank zero, until torchrun ends this one
        if command == "begin":
            optimizer = begin(*arguments.split(" ", 1))
            continue
        assert optimizer is not None
        try:
            optimizer.on_evaluate(float(arguments) - RANK / 1000)  # of the rank's own data
        except ZeusBSOTrainFailError as error:
            say(finished=optimizer.training_finished, failed=str(error))
        else:
            say(finished=optimizer.training_finished, failed=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
    if WORLD_SIZE > 1:  # gloo's threads may abort a process that ends without it
        distributed.destroy_process_group()
