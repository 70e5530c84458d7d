"""What the callback costs: import time, per-batch hooks, one report to a local service.

Run it with `python benchmarks/callback.py`; it needs the extras `service` and `dev`. These are
measurements to read, not tests: the figures are of this machine, now.
"""

from __future__ import annotations

import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from zeus_lightning import ZeusBSOCallback, ZeusServiceUnavailable
from zeus_lightning.client import BSOClient
from zeus_lightning.messages import JobSpec, Report
from zeus_lightning.meters.cpu_estimate import cpu_model

IMPORT = """
import time
import lightning
began = time.perf_counter()
import zeus_lightning
print(time.perf_counter() - began)
"""


def import_ms(rounds: int = 7) -> list[float]:
    """What `import zeus_lightning` adds after `import lightning`, each in a fresh interpreter."""
    command = [sys.executable, "-c", IMPORT]
    outputs = [subprocess.check_output(command, text=True) for _ in range(rounds)]
    return [1e3 * float(output.split()[-1]) for output in outputs]


def per_batch_us(rounds: int = 20, calls: int = 10_000) -> list[float]:
    """All the hooks that Lightning calls on the callback for one training batch."""
    callback = ZeusBSOCallback("http://127.0.0.1:1", target_metric=0.9)
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
    """One report that is answered with "keep going", as the callback sends it."""
    client = BSOClient(url)
    job = JobSpec(
        job_id=f"benchmark-{uuid4().hex}",
        batch_sizes=[32, 64, 128],
        default_batch_size=64,
        target_metric=0.9,
        higher_is_better=True,
        monitor="val_acc",
        max_epochs=10 * reports,
        max_power_w=250.0,
        num_devices=1,
        device_model="benchmark",
        meter="benchmark",
    )
    client.register_job(job)
    number = client.start_trial(job.job_id, uuid4().hex).trial_number

    def send(sequence: int) -> float:
        report = Report(
            sequence=sequence, epoch=sequence, time_s=sequence, energy_j=sequence, metric=0.1
        )
        began = time.perf_counter()
        client.report(job.job_id, number, report)
        return 1e3 * (time.perf_counter() - began)

    times = [send(sequence) for sequence in range(1, reports + 1)]
    client.end_trial(job.job_id, number, "withdrawn", "benchmark")
    return times


@contextmanager
def local_service() -> Iterator[str]:
    """`zeus-service serve` on a free port, with SQLite in a temporary folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).with_name("zeus-service")), "serve", "--bind", address]
        database = f"sqlite:///{folder}/benchmark.sqlite3"
        env = {**os.environ, "ZEUS_BSO_DATABASE_URL": database, "ZEUS_BSO_LOG_LEVEL": "WARNING"}
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            _wait_for(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def _wait_for(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise ZeusServiceUnavailable(f"the service did not start at {url}") from None
            time.sleep(0.05)
        else:
            return


def main() -> None:
    ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    machine = (
        f"{cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, lightning {version('lightning')}"
    )
    table = Table(title="ZeusBSOCallback: what it costs", caption=machine)
    for heading in ("figure", "median", "min", "max", "limit"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")

    def add(figure: str, unit: str, limit: float, measure: Callable[[], list[float]]) -> None:
        values = measure()
        cells = (statistics.median(values), min(values), max(values), limit)
        table.add_row(figure, *(f"{value:.3g} {unit}" for value in cells))

    add("import zeus_lightning, after import lightning", "ms", 50, import_ms)
    add("the callback's hooks for one training batch", "us", 5, per_batch_us)
    with local_service() as url:
        add("one report to a local service", "ms", 10, lambda: report_ms(url))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
