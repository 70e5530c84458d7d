"""The Zeus project's own client, release 0.16, against the service."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import requests
from fake_nvml import FakeDriver
from service.test_cli import zeus_service
from service_process import ServiceProcess

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
POWER_W = 100  # of two fake GPUs at rest


class ZeusRun:
    """A process that trains under Zeus's client, from its start to its exit."""

    def __init__(self, url: str, gpus: FakeDriver, **changes: Any) -> None:
        self._gpus = gpus
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("zeus_run.py")),
                url,
                json.dumps({**JOB, **changes}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**gpus.env, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        self.started = self._heard()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.status, self.errors = self.end()
        else:
            self._process.kill()
            self._process.communicate()

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

    def end(self) -> tuple[int, str]:
        """Let the script end, or see it ended; its status and what it wrote as errors."""
        _, errors = self._process.communicate(timeout=120)
        return self._process.returncode, errors

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"Zeus's client ended:\n{self.end()[1]}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def trials(service: ServiceProcess, job_id: str) -> list[dict[str, Any]]:
    path = f"{service.url}/api/v1/jobs/{job_id}/trials"
    found: list[dict[str, Any]] = requests.get(path, timeout=30).json()["trials"]
    return found


def test_this_is_the_release_that_the_wire_was_observed_in() -> None:
    assert version("zeus") == "0.16.0"


def test_zeus_users_train_a_whole_job(
    own_service: ServiceProcess, fake_gpus: FakeDriver, fake_nvml_library: Path, tmp_path: Path
) -> None:
    url = own_service.url
    fake_gpus.freeze()
    other_gpus = FakeDriver(fake_nvml_library, tmp_path / "another machine")
    other_gpus.freeze()

    # Pruning, round 1: the default, then downwards, then upwards.
    with ZeusRun(url, fake_gpus) as run:
        assert run.started == {"job_id": "digits-1", "batch_size": 16, "trial_number": 1}
        run.converge(300)
    assert run.status == 0
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 8
        assert run.epoch(400, 0.5)["failed"] is None  # the next is expected past the bound of 600
        answer = run.epoch(400, 0.5)
        assert answer["finished"]
        assert "past the bound of 600 J" in answer["failed"]
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
        assert "the epochs are used up" in run.epoch(60, 0.5)["failed"]

    # Round 2: from the cheapest survivor.
    for batch_size, cost in ((32, 210), (16, 310)):
        with ZeusRun(url, fake_gpus) as run:
            assert run.batch_size == batch_size
            run.converge(cost)

    # Sampling: 32 costs 205 J give or take 5, 16 costs 303 J give or take 5.
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 32
        run.converge(205)
    with ZeusRun(url, fake_gpus) as run:
        assert run.batch_size == 32
        assert "past the bound" in run.epoch(500, 0.95)["failed"]  # though the target is reached
    assert run.status == 0

    found = [(t["batch_size"], t["why"], t["outcome"]) for t in trials(own_service, "digits-1")]
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
    costs = [trial["cost"] for trial in trials(own_service, "digits-1")]
    assert costs == pytest.approx([300, 800, 200, 300, 10, 240, 210, 310, 205, 500])
    rebuilt = zeus_service("rebuild", "digits-1", database_url=own_service.database_url)
    assert "was right" in rebuilt.stdout


def test_the_job_is_what_the_client_measured_with(
    service: ServiceProcess, fake_gpus: FakeDriver
) -> None:
    with ZeusRun(service.url, fake_gpus, job_id=None, job_id_prefix="made") as run:
        job_id = run.started["job_id"]
        prefix, _, digits = job_id.rpartition("-")
        assert prefix == "made"
        assert len(digits) == 8
        assert int(digits, 16) >= 0
    spec = requests.get(f"{service.url}/api/v1/jobs/{job_id}", timeout=30).json()["spec"]
    assert (spec["max_power_w"], spec["num_devices"]) == (2 * 300, 2)
    assert (spec["device_model"], spec["seed"]) == (fake_gpus.gpus[0].name, 5)


def test_a_run_whose_metric_is_no_number_is_told_that_it_has_failed(
    service: ServiceProcess, fake_gpus: FakeDriver
) -> None:
    with ZeusRun(service.url, fake_gpus, job_id="digits-nan") as run:
        assert "the metric is nan" in run.epoch(10, float("nan"))["failed"]
    assert run.status == 0
    (trial,) = trials(service, "digits-nan")
    assert trial["outcome"] == "diverged"


def test_a_job_whose_batch_sizes_have_all_failed_says_so_in_the_client(
    service: ServiceProcess, fake_gpus: FakeDriver
) -> None:
    last = {"job_id": "digits-last", "batch_sizes": [16], "max_epochs": 1}
    with ZeusRun(service.url, fake_gpus, **last) as run:
        run.epoch(10, 0.5)
    status, errors = ZeusRun(service.url, fake_gpus, **last).end()
    assert status == 1
    assert "Zeus server returned status code 409" in errors
    assert "no batch size left to try: 16 (not_converged) failed" in errors
