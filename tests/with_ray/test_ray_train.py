"""The example that trains in Ray, on two workers: Ray starts them again after each failure.

`make test-ray` runs this, and no other command collects it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from programs import new_job, trials
from proxy import Proxy, Request
from service_process import ServiceProcess
from waiting import LIMIT_S, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"
MAX_EPOCHS = 12
FAILS, CONVERGES = 1024, 8
"""Batch sizes: in so many epochs the one has 24 steps, and the other 2,160."""


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """The environment of a Ray of this machine alone that keeps its files together."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # sockets: their paths are short
        yield {
            **os.environ,
            "RAY_AUTH_TOKEN": secrets.token_hex(),  # or it writes one into the home folder
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as there: it listens on loopback alone
            "RAY_TMPDIR": folder,
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # how long each epoch waits for Ray
            "RAY_USAGE_STATS_ENABLED": "0",
        }


def workers_by_rank(family: list[psutil.Process], port: int) -> list[psutil.Process]:
    """The two training processes; rank zero is the one that is connected to the service."""

    def is_connected(process: psutil.Process) -> bool:
        peers = [each.raddr for each in process.net_connections("tcp")]
        return any(peer and peer.port == port for peer in peers)

    workers = [each for each in family if "RayTrainWorker" in " ".join(each.cmdline())]
    return sorted(workers, key=is_connected, reverse=True)


def test_ray_tries_a_failed_batch_size_again_and_resumes_the_trial_of_a_worker_that_died(
    service: ServiceProcess, tmp_path: Path, variables: dict[str, str]
) -> None:
    job_id = new_job()
    sizes = {"batch_sizes": [CONVERGES, FAILS], "default_batch_size": FAILS}
    job = {"job_id": job_id, "target_metric": 0.95, "monitor": "val_acc", "max_epochs": MAX_EPOCHS}
    job["higher_is_better"] = True
    registered = requests.post(f"{service.url}/api/v1/jobs", json=job | sizes, timeout=LIMIT_S)
    assert registered.ok, registered.text

    family: list[psutil.Process] = []
    to_kill = {2: 1, 3: 0}  # at the report of this epoch, the worker of this rank

    def kill(request: Request) -> None:
        if request.kind != "report" or proxy.count("start") < 2:
            return  # the first trial's batch size fails by itself
        if (rank := to_kill.pop(request.body["epoch"], None)) is not None:
            now = psutil.Process(program.pid).children(recursive=True)
            family.extend(now)
            workers_by_rank(now, int(proxy.url.rpartition(":")[2]))[rank].kill()

    with Proxy(service.url, instead=kill) as proxy, (tmp_path / "output").open("wb") as output:
        arguments = [f"--url={proxy.url}", f"--folder={tmp_path}", f"--max-epochs={MAX_EPOCHS}"]
        program = subprocess.Popen(
            [sys.executable, str(EXAMPLE), *arguments],
            env=variables | {"ZEUS_JOB_ID": job_id},
            stdout=output,
            stderr=output,
        )
        try:
            status = program.wait(timeout=LIMIT_S)
        finally:
            program.kill()
    printed = (tmp_path / "output").read_text()
    assert status == 0, printed
    assert not to_kill, printed

    failed, resumed, *others = trials(service.url, job_id)
    assert (failed["batch_size"], failed["outcome"]) == (FAILS, "not_converged")
    assert (resumed["batch_size"], resumed["outcome"]) == (CONVERGES, "converged")
    assert [each["outcome"] for each in others] == ["withdrawn"] * 2  # begun before each resuming
    assert f"resuming trial {resumed['trial_number']} of job '{job_id}'" in printed
    assert f"\nconverged in {resumed['epoch']} epochs at a cost of " in printed
    wait_until(lambda: not any(each.is_running() for each in family), lambda: family)
