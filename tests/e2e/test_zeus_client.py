"""The Zeus project's own client, release 0.16, against the service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from databases import POSTGRESQL, migrated_database
from fake_nvml import FakeDriver
from running import Running
from service.test_cli import zeus_service
from service_process import ServiceProcess
from waiting import LIMIT_S

JOB = {
    "job_id": "digits-1",
    "job_id_prefix": "digits",
    "batch_sizes": [8, 16, 32, 64],
    "default_batch_size": 16,
    "eta_knob": 1.0,  # the cost is the energy, which the tests set
    "target_metric": 0.9,
    "max_epochs": 4,
    "mab_seed": 5,
}
SMALL = {"batch_sizes": [8, 16], "num_pruning_rounds": 1, "mab_num_explorations": 1}
POWER_W = 100  # of two fake GPUs at rest
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TOKEN = "a secret@: 50%/day".replace(" ", "-")


@contextmanager
def a_service(database: str, token: str, folder: Path) -> Iterator[tuple[ServiceProcess, str]]:
    """A service, and its URL for Zeus's client."""
    env = {"ZEUS_BSO_TOKEN": token} if token else {}
    with (
        migrated_database(database, folder) as url,
        ServiceProcess(folder, database_url=url, workers=2, **env) as service,
    ):
        user = f"zeus:{quote(token, safe='')}@" if token else ""
        yield service, service.url.replace("//", f"//{user}")


class ZeusRun(Running):
    """A process that trains under Zeus's client, from its start to its exit; or several ranks.

    It begins with a run of the job at `url`; without one, `begin` begins its first.
    The script ends by itself at the end of its input, which leaving the block is.
    """

    def __init__(self, url: str, gpus: FakeDriver, *, ranks: int = 1, **changes: Any) -> None:
        self._gpus, self.ranks = gpus, ranks
        self._url, self._changes = url, changes
        self._process = subprocess.Popen(
            [
                sys.executable,
                *(TORCHRUN if ranks > 1 else ()),
                str(Path(__file__).with_name("zeus_run.py")),
                *((url, json.dumps({**JOB, **changes})) if url else ()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**gpus.env, "OMP_NUM_THREADS": "1"},
        )

    def start(self) -> None:
        if self._url:
            self.started = self._heard()

    def end(self) -> None:
        """Let the script end, or see it ended; its `status`, and what it wrote as `errors`."""
        try:
            _, self.errors = self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()
        self.status = self._process.returncode

    def begin(self, url: str, **changes: Any) -> None:
        """Begin a run of a job, the first one of this process or another one."""
        self._url, self._changes = url, changes
        self.again()

    def again(self) -> None:
        """Begin another run of the same job."""
        self._say(f"begin {self._url} {json.dumps({**JOB, **self._changes})}")
        self.started = self._heard()

    @property
    def batch_size(self) -> int:
        return int(self.started["batch_size"])

    def epoch(self, cost: float, metric: float) -> dict[str, Any]:
        """Spend joules, report, and hear what the client makes of the answer."""
        self._gpus.advance(cost / POWER_W)
        self._say(f"epoch {metric}")
        return self._heard()

    def converge(self, cost: float) -> None:
        """Reach the target in two epochs that cost as much together."""
        assert self.epoch(cost / 2, 0.5) == {"finished": False, "failed": None}
        assert self.epoch(cost / 2, 0.95) == {"finished": True, "failed": None}

    def fail(self) -> None:
        """Fail as a training script may."""
        self._say("raise")

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        """The answer that all ranks have got, with the texts of all: one of them has a reason."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.end()
            raise AssertionError(f"Zeus's client ended:\n{self.errors}")
        answers: list[dict[str, Any]] = json.loads(line)
        assert len(answers) == self.ranks
        texts = [answer.pop("failed", None) for answer in answers]
        assert answers == [answers[0]] * self.ranks
        assert all(texts) or not any(texts), texts
        return {**answers[0], "failed": " ".join(texts) if all(texts) else None}


def trials(service: ServiceProcess, job_id: str, token: str = "") -> list[dict[str, Any]]:
    path = f"{service.url}/api/v1/jobs/{job_id}/trials"
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(path, headers=headers, timeout=LIMIT_S).json()
    found: list[dict[str, Any]] = answer["trials"]
    return found


def test_this_is_the_release_that_the_wire_was_observed_in() -> None:
    assert version("zeus") == "0.16.0"


@pytest.fixture(scope="module")
def gpus(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """The driver of all runs on two ranks, with two GPUs at rest."""
    driver = FakeDriver(fake_nvml_library, tmp_path_factory.mktemp("driver") / "state")
    driver.freeze()
    return driver


@pytest.fixture(scope="module")
def one_rank(gpus: FakeDriver) -> Iterator[ZeusRun]:
    """A process in which several tests begin runs."""
    with ZeusRun("", gpus) as run:
        yield run
    assert run.status == 0, run.errors


@pytest.fixture(scope="module")
def two_ranks(gpus: FakeDriver) -> Iterator[ZeusRun]:
    """Two processes in which several tests begin runs."""
    with ZeusRun("", gpus, ranks=2) as run:
        yield run
    assert run.status == 0, run.errors


@pytest.mark.parametrize("database", ["sqlite", *POSTGRESQL])
def test_zeus_users_train_a_small_job_on_one_rank_and_on_two(
    one_rank: ZeusRun, two_ranks: ZeusRun, tmp_path: Path, database: str
) -> None:
    token = TOKEN if database == "sqlite" else ""
    with a_service(database, token, tmp_path) as (service, url):
        for run in (one_rank, two_ranks):
            job_id = f"digits-{run.ranks}"
            run.begin(url, job_id=job_id, **SMALL)
            assert (run.batch_size, run.started["trial_number"]) == (16, 1)
            run.converge(300)
            run.again()
            assert run.batch_size == 8
            assert run.epoch(200, 0.5) == {"finished": False, "failed": None}
            assert "cost upper bound" in run.epoch(500, 0.95)["failed"]
            run.again()
            assert run.batch_size == 16
            run.converge(60)
            found = [
                (t["batch_size"], t["why"], t["outcome"], pytest.approx(t["cost"] * run.ranks))
                for t in trials(service, job_id, token)
            ]
            assert found == [
                (16, "explore", "converged", 300),
                (8, "explore", "early_stopped", 700),
                (16, "exploit", "converged", 60),
            ]


# This has runs that end in other ways: one job with a token on PostgreSQL, in several processes.


@pytest.mark.parametrize("database", POSTGRESQL)
def test_zeus_users_train_a_whole_job(
    fake_gpus: FakeDriver, fake_nvml_library: Path, tmp_path: Path, database: str
) -> None:
    with a_service(database, TOKEN, tmp_path) as (service, url):
        train_a_whole_job(url, fake_gpus, FakeDriver(fake_nvml_library, tmp_path / "another"))
        check_a_whole_job(service, TOKEN)


def train_a_whole_job(url: str, fake_gpus: FakeDriver, other_gpus: FakeDriver) -> None:
    """Ten runs, from the first to sampling."""
    fake_gpus.freeze()
    other_gpus.freeze()

    # Pruning, round 1: the default, then downwards, then upwards.
    with ZeusRun(url, fake_gpus) as run:
        assert (run.batch_size, run.started["trial_number"]) == (16, 1)
        run.converge(300)
        run.again()
        assert run.batch_size == 8
        assert run.epoch(400, 0.5)["failed"] is None  # the next is expected past the bound of 600
        answer = run.epoch(400, 0.5)
        assert answer["finished"]
        assert "cost upper bound" in answer["failed"]
        assert "over its stop limit of 600 J" in answer["failed"]
    assert run.status == 0
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 32
        with ZeusRun(url, other_gpus) as concurrent:
            assert concurrent.batch_size == 16  # the cheapest known
            concurrent.converge(300)
        run.converge(200)
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 64
        run.epoch(10, 0.5)
        run.fail()
    assert run.status == 1
    assert "the training fails" in run.errors
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 64  # the failure said nothing about it
        for _ in range(3):
            assert not run.epoch(60, 0.5)["finished"]
        assert "Train failed to converge within max_epoch" in run.epoch(60, 0.5)["failed"]

        # Round 2: from the cheapest survivor.
        run.again()
        for batch_size, cost in ((32, 210), (16, 310)):
            assert run.batch_size == batch_size
            run.converge(cost)
            run.again()

        # Sampling: 32 costs 205 J give or take 5, 16 costs 303 J give or take 5.
        assert run.batch_size == 32
        run.converge(205)
        run.again()
        assert run.batch_size == 32
        assert "cost upper bound" in run.epoch(500, 0.95)["failed"]  # though the target is reached
    assert run.status == 0


def check_a_whole_job(service: ServiceProcess, token: str) -> None:
    """What the service has made of these runs."""
    recorded = trials(service, "digits-1", token)
    found = [(t["batch_size"], t["why"], t["outcome"]) for t in recorded]
    assert found == [
        (16, "explore", "converged"),
        (8, "explore", "early_stopped"),
        (32, "explore", "converged"),
        (16, "concurrent", "converged"),
        (64, "explore", "interrupted"),
        (64, "explore", "not_converged"),
        (32, "explore", "converged"),
        (16, "explore", "converged"),
        (32, "exploit", "converged"),
        (32, "exploit", "early_stopped"),
    ]
    costs = [trial["cost"] for trial in recorded]
    assert costs == pytest.approx([300, 800, 200, 300, 10, 240, 210, 310, 205, 500])
    rebuilt = zeus_service("rebuild", "digits-1", database_url=service.database_url)
    assert "match the replay" in rebuilt.stdout


def test_a_client_without_a_token_is_told_where_to_put_it(
    fake_gpus: FakeDriver, tmp_path: Path
) -> None:
    with ServiceProcess(tmp_path, ZEUS_BSO_TOKEN="a-secret-of-16-or-more") as service:
        run = ZeusRun(service.url, fake_gpus)
        run.end()
    assert run.status == 1
    assert "Zeus server returned status code 401" in run.errors
    assert "http://zeus:TOKEN@HOST" in run.errors


def test_the_job_is_what_the_client_measured_with(
    service: ServiceProcess, one_rank: ZeusRun, gpus: FakeDriver
) -> None:
    one_rank.begin(service.url, job_id=None, job_id_prefix="made")
    job_id = one_rank.started["job_id"]
    prefix, _, digits = job_id.rpartition("-")
    assert prefix == "made"
    assert len(digits) == 8
    assert int(digits, 16) >= 0
    one_rank.converge(300)
    job = requests.get(f"{service.url}/api/v1/jobs/{job_id}", timeout=LIMIT_S).json()
    (hardware,) = job["hardware"]
    assert (hardware["max_power_w"], hardware["num_devices"]) == (2 * 300, 2)
    assert (hardware["device_model"], job["spec"]["seed"]) == (gpus.gpus[0].name, 5)


def test_a_run_whose_metric_is_no_number_is_told_that_it_has_failed(
    service: ServiceProcess, one_rank: ZeusRun
) -> None:
    one_rank.begin(service.url, job_id="digits-nan")
    assert "the metric is nan" in one_rank.epoch(10, float("nan"))["failed"]
    (trial,) = trials(service, "digits-nan")
    assert trial["outcome"] == "diverged"
