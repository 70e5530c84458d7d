"""What the callbacks cost: at import, for each batch, at each validation end, over a training.

Run it with `python benchmarks/callback.py`, in about four minutes on a quiet machine; it needs the
environment of `make install`. These are measurements to read, not tests; those of one machine are
in `RESULTS.md`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from argparse import ArgumentParser
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import torch
from lightning.pytorch import Callback
from rich.console import Console
from rich.table import Table
from service_load import HERE, service

from zeus_lightning import ZeusBSOCallback, ZeusEnergyCallback, ZeusPowerLimitCallback
from zeus_lightning.client import BSOClient
from zeus_lightning.messages import Hardware, JobSpec, Report
from zeus_lightning.meters.cpu_estimate import cpu_model

RUNS = Path(__file__).with_name("callback_runs.py")
EPOCHS = 3  # of each of its trainings
IMPORT = """
import time
import lightning
began = time.perf_counter()
from zeus_lightning import ZeusBSOCallback
print(time.perf_counter() - began)
"""


def import_ms(rounds: int = 7) -> list[float]:
    """What `import zeus_lightning` adds after `import lightning`, each in a fresh interpreter.

    The first one, which is not counted, compiles it.
    """
    command = [sys.executable, "-c", IMPORT]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    outputs = [subprocess.check_output(command, text=True, env=env) for _ in range(rounds + 1)]
    return [1e3 * float(output.split()[-1]) for output in outputs[1:]]


def per_batch_us(callback: Callback, rounds: int = 20, calls: int = 10_000) -> list[float]:
    """All the hooks that Lightning calls on a callback for one training batch."""
    arguments = {
        "on_train_batch_start": 4,
        "on_before_zero_grad": 3,
        "on_before_backward": 3,
        "on_after_backward": 2,
        "on_before_optimizer_step": 3,
        "on_train_batch_end": 5,
    }
    calls_of_a_batch = [(getattr(callback, name), count) for name, count in arguments.items()]

    def one_batch() -> None:
        for hook, count in calls_of_a_batch:
            hook(*(None,) * count)

    return [1e6 * timeit.timeit(one_batch, number=calls) / calls for _ in range(rounds)]


def report_ms(url: str, reports: int = 300) -> list[float]:
    """One report that is answered with `continue`, as the callback sends it."""
    client = BSOClient(url)
    job = JobSpec(
        job_id=f"benchmark-{uuid4().hex}",
        batch_sizes=[32, 64, 128],
        default_batch_size=64,
        target_metric=0.9,
        higher_is_better=True,
        monitor="val_acc",
        max_epochs=10 * reports,
    )
    client.register_job(job)
    hardware = Hardware(
        device_model="none", num_devices=1, max_power_w=250.0, meter="none", estimated=False
    )
    trial = client.start_trial(job.job_id, uuid4().hex, hardware)

    def send(sequence: int) -> float:
        report = Report(
            sequence=sequence, epoch=sequence, time_s=sequence, energy_j=sequence, metric=0.1
        )
        began = time.perf_counter()
        client.report(trial, report)
        return 1e3 * (time.perf_counter() - began)

    times = [send(sequence) for sequence in range(1, reports + 1)]
    client.end_trial(trial, "withdrawn", "benchmark")
    return times


def run(*arguments: str) -> dict[str, Any]:
    """The measurements of a training of `callback_runs.py`."""
    command = [sys.executable, str(RUNS), *arguments]
    output = subprocess.check_output(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True)
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    return measured


def spread(values: list[float]) -> str:
    """Mean and two standard errors of it."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.4f} +- {2 * error:.4f}"


def machine() -> str:
    """The machine and the versions that were measured."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    packages = ", ".join(f"{name} {version(name)}" for name in ("lightning", "torch"))
    return (
        f"{cpu_model()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"{', '.join(gpus) or 'no GPU'}; {platform.platform()}; "
        f"Python {platform.python_version()}, {packages}"
    )


def main() -> None:
    """Measure it all, and print it."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch-s", type=float, default=3.0, help="seconds of a training epoch")
    parser.add_argument("--rounds", type=int, default=6, help="trainings with the callback")
    options = parser.parse_args()
    began_s, load = time.monotonic(), os.getloadavg()[0]
    table = Table(title="What the callbacks cost")
    for heading in ("figure", "median", "min", "max", "target"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")

    def add(figure: str, unit: str, limit: str, values: list[float]) -> None:
        cells = (f(values) for f in (statistics.median, min, max))
        table.add_row(figure, *(f"{value:.4g} {unit}".rstrip() for value in cells), limit)

    add("import zeus_lightning, after import lightning", "ms", "50 ms", import_ms())
    batch_size = ZeusBSOCallback("http://127.0.0.1:1")
    power = ZeusPowerLimitCallback()  # as it is when profiling is over
    add("ZeusBSOCallback's hooks for one training batch", "µs", "5 µs", per_batch_us(batch_size))
    add("ZeusPowerLimitCallback's hooks for one training batch", "µs", "5 µs", per_batch_us(power))
    energy = ZeusEnergyCallback()
    add("ZeusEnergyCallback's hooks for one training batch", "µs", "5 µs", per_batch_us(energy))
    with (
        tempfile.TemporaryDirectory() as folder,
        service(HERE, None, 0.0, Path(folder), 2) as local,
    ):
        url = f"http://127.0.0.1:{local.port}"
        add("one report to a local service", "ms", "10 ms", report_ms(url))
        for devices, where, limit in ((1, "alone", "10 ms"), (2, "on 2 ranks of ddp", "15 ms")):
            ends = run("ends", url, str(devices))
            add(f"in the callback at a validation end, {where}", "ms", limit, ends["ms"])
            add("strategy calls of it", "", "2" if devices > 1 else "", ends["calls"])
        trained = run("pairs", url, str(options.epoch_s), str(EPOCHS), str(options.rounds))
    without, with_it = trained["without"], trained["with"]
    neighbours = [(before + after) / 2 for before, after in pairwise(without)]
    ratios = [a / b for a, b in zip(with_it, neighbours, strict=True)]
    resolution = [after / before for before, after in pairwise(without)]
    epochs = [seconds / EPOCHS for seconds in without]
    add("an epoch of the trainings below, without it", "s", ">= 2 s", epochs)
    add("training time, with it over without", "", "1.01", ratios)
    add("  without over without: the resolution", "", "", resolution)
    console = Console(width=110)
    console.print(table)
    console.print(
        f"Training time, with over without, by {options.rounds} pairs: {spread(ratios)} (mean "
        f"and two standard errors); without over without: {spread(resolution)}."
    )
    console.print(f"{machine()}.")
    console.print(
        f"Load {load:.1f} when it began and {os.getloadavg()[0]:.1f} when it ended, after "
        f"{time.monotonic() - began_s:.0f} s."
    )


if __name__ == "__main__":
    main()
