"""What the service bears: requests a second, latencies, memory, and the cost of a long history.

    python benchmarks/service_load.py  # on $ZEUS_TEST_POSTGRES_URL, or on SQLite files
    python benchmarks/service_load.py --distance 0 --distance 1 --against ../before/.venv

It makes databases of its own on the server, such as postgresql://postgres@127.0.0.1/postgres, and
drops them. It needs the environment of `make install`. These are measurements to read, not tests:
the figures are of this machine, now. `--against` compares this installation with another in
alternating rounds, so that both meet the same machine; `--distance` puts the database some
milliseconds away.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import sqlalchemy as sa
from distance import delayed
from rich.console import Console
from rich.table import Table

HERE = Path(sys.executable).parents[1]
REPORTS = 3
JOB = {
    "batch_sizes": [16, 32, 64, 128, 256],
    "default_batch_size": 64,
    "target_metric": 0.9,
    "higher_is_better": True,
    "monitor": "val_acc",
    "max_epochs": 100,
}
HARDWARE = {"device_model": "none", "num_devices": 1, "max_power_w": 250.0, "meter": "none"}
START = json.dumps({"hardware": HARDWARE})


@dataclass
class Load:
    """What a round of load came to."""

    seconds: float
    workers_cpu_seconds: float = 0.0
    """Of the service's workers."""
    starts_ms: list[float] = field(default_factory=list)
    reports_ms: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def requests(self) -> int:
        """Answers in all."""
        return len(self.starts_ms) + len(self.reports_ms)


class Client:
    """One training job after another, on a kept-alive connection: a start, then its reports.

    It speaks HTTP by hand: a library would take more of the machine than the service does.
    """

    def __init__(self, port: int, job_id: str, reports: int) -> None:
        self.job_id = job_id
        self.reports = reports
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0
        self.trial: dict[str, Any] = {}
        self.sequence = 0  # 0: a start is under way

    def send(self) -> None:
        """Send what comes next."""
        trials = f"/api/v1/jobs/{self.job_id}/trials"
        if self.sequence == 0:
            self._post(trials, START, f"Idempotency-Key: {uuid4().hex}\r\n")
        else:
            n, metric = (
                self.sequence,
                0.95 if self.sequence == self.reports else 0.1 * self.sequence,
            )
            generation = self.trial.get("generation", "")  # older services hand out none
            self._post(
                f"{trials}/{self.trial['trial_number']}/reports?generation={generation}",
                f'{{"sequence":{n},"epoch":{n},"time_s":{n}.5,"energy_j":{n}00.0,'
                f'"metric":{metric}}}',
            )

    def _post(self, path: str, body: str, headers: str = "") -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def take(self, load: Load) -> bool:
        """Take what has arrived; whether that was a whole answer."""
        received = self.socket.recv(65536)
        if not received:
            raise ConnectionError("the service closed a connection")
        self.received += received
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank:
            return False
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return False
        self.received = b""
        took_ms = 1e3 * (time.perf_counter() - self.sent_at)
        (load.reports_ms if self.sequence else load.starts_ms).append(took_ms)
        if head[9:10] != b"2":
            load.errors += 1
            self.sequence = 0
        elif self.sequence == 0:
            self.trial = json.loads(body)
            self.sequence = 1
        else:
            self.sequence = (self.sequence + 1) % (self.reports + 1)
        return True


def generate(port: int, job_ids: list[str], seconds: float, trials: int, reports: int) -> Load:
    """Load the service with a client for each job id, for so long or for so many trials."""
    clients = [Client(port, job_id, reports) for job_id in job_ids]
    load = Load(0.0)
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.send()
        waiting = len(clients)
        while waiting:
            for key, _ in selector.select():
                if key.data.take(load):
                    over = time.perf_counter() - began > seconds or len(load.starts_ms) >= trials
                    if over and key.data.sequence == 0:
                        waiting -= 1
                    else:
                        key.data.send()
    load.seconds = time.perf_counter() - began
    for client in clients:
        client.socket.close()
    return load


def in_a_process(*arguments: Any) -> Load:
    """Generate the load in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(generate, arguments)


@contextmanager
def database(server: str | None, folder: Path) -> Iterator[sa.URL]:
    """A new database: on the server whose URL is given, or an SQLite file."""
    name = f"zeus_benchmark_{uuid4().hex[:8]}"
    if server is None:
        yield sa.make_url(f"sqlite:///{folder / name}.sqlite3")
        return
    url = sa.make_url(server)
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    url = url.set(drivername=drivers[url.get_backend_name()])
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        try:
            yield url.set(database=name)
        finally:
            forced = " WITH (FORCE)" if url.get_backend_name() == "postgresql" else ""
            connection.exec_driver_sql(f"DROP DATABASE {name}{forced}")
    engine.dispose()


@dataclass(frozen=True)
class Service:
    """A running service."""

    port: int
    arbiter: psutil.Process
    """gunicorn's first process."""
    database_url: str

    def workers_cpu_seconds(self) -> float:
        """CPU time of the workers so far."""
        times = [worker.cpu_times() for worker in self.arbiter.children()]
        return sum(each.user + each.system for each in times)


@contextmanager
def service(
    installation: Path, server: str | None, distance_ms: float, folder: Path, workers: int
) -> Iterator[Service]:
    """A virtual environment's service on a free port, with a database of its own."""
    with ExitStack() as stack:
        url = stack.enter_context(database(server, folder))
        if distance_ms:
            port = url.port or {"postgresql": 5432, "mysql": 3306}[url.get_backend_name()]
            near = delayed(url.host or "127.0.0.1", port, distance_ms / 1000)
            url = url.set(host="127.0.0.1", port=stack.enter_context(near))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "ZEUS_BSO_DATABASE_URL": url.render_as_string(hide_password=False),
            "ZEUS_BSO_LOG_LEVEL": "WARNING",
        }
        program = installation / "bin" / "zeus-service"
        subprocess.run([program, "db", "upgrade"], env=environment, check=True, capture_output=True)
        command = [program, "serve", f"--bind=127.0.0.1:{port}", f"--workers={workers}"]
        log = stack.enter_context((folder / f"service-{port}.log").open("wb"))
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield Service(port, psutil.Process(process.pid), environment["ZEUS_BSO_DATABASE_URL"])
        finally:
            process.terminate()
            process.wait()


def register(port: int, count: int = 1) -> list[str]:
    """Register new jobs."""
    import requests

    job_ids = [f"benchmark-{uuid4().hex}" for _ in range(count)]
    for job_id in job_ids:
        body = {**JOB, **HARDWARE, "job_id": job_id}  # a service from before reads it here
        requests.post(
            f"http://127.0.0.1:{port}/api/v1/jobs", json=body, timeout=30
        ).raise_for_status()
    return job_ids


def report_on(port: int, job_id: str, count: int) -> list[float]:
    """Milliseconds of reports that say "keep going", by one client that is alone."""
    load, client = Load(0.0), Client(port, job_id, reports=10**6)
    for _ in range(count + 1):
        client.send()
        while not client.take(load):
            pass
    client.socket.close()
    return load.reports_ms


def percentile(values: list[float], percent: int) -> float:
    """The value that so many percent of the values do not exceed."""
    return statistics.quantiles(values, n=100)[percent - 1]


def main() -> None:
    """Measure, and print the tables."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--server", default=os.environ.get("ZEUS_TEST_POSTGRES_URL"))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one round")
    parser.add_argument("--trials", type=int, default=10_000, help="of the long history; 0: none")
    parser.add_argument(
        "--distance", type=float, action="append", help="of the database, in ms; may be repeated"
    )
    parser.add_argument("--against", type=Path, help="another virtual environment, to compare with")
    given = parser.parse_args()
    if any(given.distance or ()) and not given.server:
        parser.error("--distance is that of a --server, or $ZEUS_TEST_POSTGRES_URL")
    console = Console(width=100)
    console.print(_machine(given.server), highlight=False)
    for distance_ms in given.distance or [0.0]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            services = {
                name: stack.enter_context(
                    service(installation, given.server, distance_ms, folder, given.workers)
                )
                for name, installation in {"this": HERE, "against": given.against}.items()
                if installation
            }
            console.print(_throughput(services, distance_ms, given))
            for name, each in services.items():
                memory = [f"{w.memory_info().rss / 1e6:.0f}" for w in each.arbiter.children()]
                console.print(f"Resident memory per worker after this load, {name}: {memory} MB")
            if given.trials and not distance_ms:
                _long_history(services["this"].port, given, console)
    console.print("CPU: of the workers per request.")


def _throughput(services: dict[str, Service], distance_ms: float, given: Namespace) -> Table:
    """Medians of rounds that alternate between the services, and of the ratios of each pair."""
    table = Table(
        title=f"{given.clients} clients, a start and {REPORTS} reports each, in turn; "
        f"the database {distance_ms:g} ms away"
    )
    for name in ("", "", "requests/s", "report p50 ms", "p99 ms", "start p50 ms", "CPU ms",
                 "errors"):  # fmt: skip
        table.add_column(name, justify="right" if name else "left")
    for title, jobs in (("one job per client", given.clients), ("one shared job", 1)):
        rounds: dict[str, list[list[float]]] = {name: [] for name in services}
        ids = {
            name: register(each.port, jobs) * (given.clients // jobs)
            for name, each in services.items()
        }
        for number in range(given.rounds):
            for name in sorted(services, reverse=bool(number % 2)):
                began = services[name].workers_cpu_seconds()
                arguments = (services[name].port, ids[name], given.seconds, sys.maxsize, REPORTS)
                load = in_a_process(*arguments)
                load.workers_cpu_seconds = services[name].workers_cpu_seconds() - began
                rounds[name].append(_figures(load))
        for name, figures in rounds.items():
            table.add_row(
                title, name, *(f"{statistics.median(x):.4g}" for x in zip(*figures, strict=True))
            )
        if len(rounds) == 2:
            pairs = zip(*rounds.values(), strict=True)
            ratios = [[a / b if b else 1.0 for a, b in zip(*pair, strict=True)] for pair in pairs]
            table.add_row(
                title, "ratio", *(f"{statistics.median(x):.2f}" for x in zip(*ratios, strict=True))
            )
    return table


def _figures(load: Load) -> list[float]:
    return [
        load.requests / load.seconds,
        percentile(load.reports_ms, 50),
        percentile(load.reports_ms, 99),
        percentile(load.starts_ms, 50),
        1000 * load.workers_cpu_seconds / load.requests,
        load.errors,
    ]


def _long_history(port: int, given: Namespace, console: Console) -> None:
    short, long = register(port, 2)
    generate(port, [short], 1e9, 10, 1)
    in_a_process(port, [long] * given.clients, 1e9, given.trials, 1)
    pairs = [(report_on(port, short, 200), report_on(port, long, 200)) for _ in range(7)]
    few = [statistics.median(pair[0]) for pair in pairs]
    many = [statistics.median(pair[1]) for pair in pairs]
    ratios = [b / a for a, b in zip(few, many, strict=True)]
    console.print(
        f"A report on a job with {given.trials} finished trials takes "
        f"{statistics.median(ratios):.2f} times one on a job with 10 "
        f"({min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} pairs; "
        f"{statistics.median(few):.2f} ms there)"
    )


def _machine(server: str | None) -> str:
    with tempfile.TemporaryDirectory() as folder, database(server, Path(folder)) as url:
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":
                version_ = connection.exec_driver_sql("SHOW server_version").scalar()
                fsync = connection.exec_driver_sql("SHOW fsync").scalar()
                data = f"PostgreSQL {version_}, fsync {fsync}"
            else:
                data = f"{engine.dialect.name} {connection.dialect.server_version_info}"
        engine.dispose()
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
        f"Python {platform.python_version()}, gunicorn {version('gunicorn')}, "
        f"SQLAlchemy {version('sqlalchemy')}, {data}"
    )


if __name__ == "__main__":
    main()
