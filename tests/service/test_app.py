"""The application as it is when a worker has made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from databases import DATABASES, migrated_database
from service.jobs import START, spec_json
from service_process import ServiceProcess
from waiting import LIMIT_S
from zeus_service import create_app
from zeus_service.config import Config

WATCHED = """
import sys
from zeus_service.app import make_ready_app

app = make_ready_app()

def watch(event, arguments):
    if event == "open" and str(arguments[0]).endswith((".py", ".pyc", ".so")):
        with open("imported.txt", "a") as file:
            file.write(f"{arguments[0]}\\n")

sys.addaudithook(watch)
"""
"""A program for gunicorn that notes each module which is read from disk from then on."""

LOADED = """
import sys
import zeus_service.cli  # as `zeus-service serve` does
from zeus_service.app import make_ready_app

app = make_ready_app()

@app.get("/modules")
def modules():
    return list(sys.modules)
"""
"""A program for gunicorn that lists the modules which its worker has in memory."""

V1 = "/api/v1/jobs"
SPEC = spec_json(job_id="job")
REPORT = {"sequence": 1, "epoch": 1, "time_s": 1.0, "energy_j": 100.0, "metric": 0.1}
PROFILE = {
    "device_model": "Fake GPU",
    "driver": "1",
    "num_devices": 1,
    "batch_size": 32,
    "points": [{"limit_w": 100, "energy_j": 30.5, "time_s": 0.1}],
    "chosen_w": 100,
    "selector": "zeus-cost",
    "eta_knob": 0.5,
    "max_power_w": 100.0,
    "search": "sweep",
    "measured_at": "2026-05-04T12:00:00Z",
}
ZEUS_JOB = {
    "job_id": "zeus",
    "job_id_prefix": "zeus",
    "batch_sizes": [8, 16, 32],
    "default_batch_size": 16,
    "max_epochs": 10,
    "max_power": 100.0,
    "number_of_gpus": 1,
    "gpu_model": "Fake GPU",
}
ZEUS_TRIAL = {"job_id": "zeus", "trial_number": 1, "batch_size": 16}
ZEUS_REPORT = {**ZEUS_TRIAL, "current_epoch": 1, "time": 10.0, "energy": 500.0, "metric": 0.1}
REQUESTS: list[tuple[str, str, Any, int]] = [
    ("GET", "/healthz", None, 200),
    ("GET", "/readyz", None, 200),
    ("GET", "/openapi.json", None, 200),
    ("POST", V1, SPEC, 201),
    ("POST", V1, {}, 422),
    ("GET", f"{V1}/none", None, 404),
    ("POST", f"{V1}/job/trials", START, 201),
    ("POST", f"{V1}/job/trials/1/reports", REPORT, 200),
    ("POST", f"{V1}/job/trials/1/heartbeat", {}, 200),
    ("PATCH", f"{V1}/job/trials/1", {"outcome": "errored"}, 200),
    ("POST", f"{V1}/job/trials", START, 201),
    ("POST", f"{V1}/job/trials/2/reports", {**REPORT, "metric": 0.95}, 200),  # it converges
    ("PUT", f"{V1}/job/power-profiles/32", PROFILE, 201),
    ("GET", f"{V1}/job/power-profiles/32?device_model=Fake+GPU&num_devices=1", None, 200),
    ("GET", f"{V1}/job/power-profiles", None, 200),
    ("GET", V1, None, 200),
    ("GET", f"{V1}/job", None, 200),
    ("GET", f"{V1}/job/trials", None, 200),
    ("GET", f"{V1}/job/savings", None, 200),
    ("GET", "/api/v1/savings", None, 200),
    ("GET", "/", None, 200),
    ("GET", "/savings", None, 200),
    ("GET", "/savings.csv", None, 200),
    ("GET", "/job/job", None, 200),
    ("GET", "/job/job/figures", None, 200),
    ("GET", "/job/job/figures/compare?run=1", None, 200),
    ("GET", "/job/job/trials.csv", None, 200),
    ("GET", "/job/job/trial/2", None, 200),
    ("GET", "/job/job/trial/2/figures", None, 200),
    ("GET", "/job/none", None, 404),
    ("GET", "/assets/page.css", None, 200),
    ("GET", "/sign-in", None, 200),
    ("POST", "/sign-in", {}, 401),
    ("POST", "/sign-out", {}, 200),
    ("GET", "/job/job/delete", None, 200),
    ("POST", "/job/job/delete", {}, 422),
    ("DELETE", f"{V1}/job?force=true", None, 204),
    ("POST", "/jobs", ZEUS_JOB, 201),
    ("GET", "/jobs/batch_size?job_id=zeus", None, 200),
    ("POST", "/report", ZEUS_REPORT, 200),
    ("PATCH", "/trials", ZEUS_TRIAL, 200),
    ("DELETE", "/jobs?job_id=zeus", None, 200),
    ("GET", "/metrics", None, 200),
]
"""Method, address, body and the expected status, in an order in which each succeeds."""


@pytest.mark.parametrize("kind", DATABASES)
def test_no_request_reads_a_module_from_disk(kind: str, tmp_path: Path) -> None:
    """A worker may run as a user who cannot enter the folders of Python's packages."""
    (tmp_path / "watched.py").write_text(WATCHED)
    with (
        migrated_database(kind, tmp_path) as url,
        ServiceProcess(
            tmp_path, database_url=url, gunicorn=True, application="watched:app"
        ) as service,
    ):
        generation: dict[str, str] = {}
        for method, path, body, status in REQUESTS:
            answer = requests.request(
                method, f"{service.url}{path}", json=body, params=generation, timeout=LIMIT_S
            )
            assert answer.status_code == status, (method, path, answer.text)
            if (method, path) == ("POST", f"{V1}/job/trials"):
                generation = {"generation": answer.json()["generation"]}
        imported = tmp_path / "imported.txt"
        assert not imported.exists(), imported.read_text()


def test_a_worker_does_not_keep_in_memory_what_only_commands_need(tmp_path: Path) -> None:
    (tmp_path / "loaded.py").write_text(LOADED)
    with ServiceProcess(tmp_path, gunicorn=True, application="loaded:app") as service:
        loaded = set(requests.get(f"{service.url}/modules", timeout=LIMIT_S).json())
    assert loaded >= {"zeus_service.optimizer", "zeus_service.cli"}
    assert not loaded & {"rich", "zeus_service.simulation"}


def test_the_requests_of_that_test_take_every_route(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path / 'service.sqlite3'}"))
    match = app.url_map.bind("localhost").match
    taken = {(method, match(path.partition("?")[0], method)[0]) for method, path, *_ in REQUESTS}
    routes = {
        (method, rule.endpoint)
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
        if method not in ("HEAD", "OPTIONS")
    }
    assert taken == routes
