"""What the wire of the Zeus project's server takes, and refuses by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from service.api.wires import Wire, error, result, zeus_job
from zeus_service import maintenance


@pytest.fixture
def trial(wire: Wire) -> dict[str, Any]:
    """A trial that no other test uses."""
    made = wire("POST", "/jobs", zeus_job(job_id=None)).json()
    return wire.start(made["job_id"])


NUMBERS = [10**400, -1, "1", True, None, [], {}, 1.5]
UNSUITED = {
    "batch_sizes": [[], [0], [1.5], ["8"], [16, True], 8, None, [16, 10**30], [16, 16]],
    "default_batch_size": [*NUMBERS, 0, 7],
    "eta_knob": [1.01, -0.01, "0.5", True, None, float("nan")],
    "beta_knob": [0, -1, "2", True, float("inf")],
    "target_metric": ["1", True, None, float("nan"), 1e31],
    "max_epochs": [*NUMBERS, 0],
    "num_pruning_rounds": NUMBERS,
    "window_size": NUMBERS,
    "mab_prior_mean": ["1", None, float("nan"), float("-inf")],
    "mab_prior_precision": [-1, "1", None, float("nan")],
    "mab_num_explorations": NUMBERS,
    "mab_seed": [-1, "1", True, 1.5, 2**32],
    "max_power": [0, -1, "1", True, None, float("nan")],
    "number_of_gpus": [*NUMBERS, 0],
    "gpu_model": ["", None, 1, "a\nb", "\x00"],
    "job_id": ["", 1, "zeus\x00", "zeus\n", "zeus ", "zeus\x7f", "zeus" + "é" * 297],
    "job_id_prefix": [None, 1, [], "x" * 400],
}


@pytest.mark.parametrize("field", UNSUITED)
def test_a_job_with_an_unsuited_value_is_refused_by_name(wire: Wire, field: str) -> None:
    for value in UNSUITED[field]:
        given = zeus_job(**{"job_id": "zeus-unsuited", field: value})
        assert field in error(wire("POST", "/jobs", given), 422), value
    assert wire("GET", "/api/v1/jobs/zeus-unsuited").status_code == 404


def test_an_id_that_zeus_server_takes_is_taken(app: Flask) -> None:
    client = app.test_client()
    job_ids = ("night train", "team/night/trials", "_é日", "'", "a%2Fb", "[/b]", "...", "é" * 300)
    for job_id in job_ids:
        given = zeus_job(job_id=job_id, job_id_prefix=job_id)
        assert client.post("/jobs", json=given).status_code == 201
        for prefix in (job_id[:290], ""):
            made = client.post("/jobs", json=zeus_job(job_id=None, job_id_prefix=prefix))
            assert made.get_json()["job_id"].startswith(f"{prefix}-")
        named = f"job_id={quote(job_id)}"
        trial = client.get(f"/jobs/batch_size?{named}").get_json()
        assert trial["job_id"] == job_id
        assert client.post("/report", json=result(trial, metric=0.9)).get_json()["converged"]
        assert client.patch("/trials", json=trial).status_code == 200
        listed = [job["job_id"] for job in client.get("/api/v1/jobs").get_json()["jobs"]]
        assert listed == sorted(listed)
        assert {job_id, made.get_json()["job_id"]} <= set(listed)
        shown = client.get(f"/api/v1/jobs/{quote(job_id, safe='')}")
        if "/" in job_id:  # a path cannot name it
            assert shown.status_code == 404
        else:
            assert shown.get_json()["best_batch_size"] == 16
        assert maintenance.rebuild(job_id)
        assert client.delete(f"/jobs?{named}").status_code == 200


def test_a_job_id_begins_with_its_prefix(wire: Wire) -> None:
    given = zeus_job(job_id="other-job")
    message = error(wire("POST", "/jobs", given), 422)
    assert "'other-job' does not start with job_id_prefix 'zeus'" in message
    given = zeus_job(job_id=None, job_id_prefix="x" * 292)
    assert "job_id" in error(wire("POST", "/jobs", given), 422)


@pytest.mark.parametrize(
    "field", ["batch_size", "trial_number", "time", "energy", "metric", "current_epoch", "job_id"]
)
def test_a_report_with_an_unsuited_value_changes_nothing(
    wire: Wire, trial: dict[str, Any], field: str
) -> None:
    values = [10**400, "1 ", True, None, [], {}]
    values += [] if field == "metric" else [-1, float("nan"), float("inf")]
    for value in values:
        assert field in error(wire("POST", "/report", {**result(trial), field: value}), 422)
    assert wire("POST", "/report", result(trial)).json()["stop_train"] is False


@pytest.mark.parametrize("method_and_path", ["POST /jobs", "POST /report", "PATCH /trials"])
def test_a_body_that_is_no_object_is_refused(wire: Wire, method_and_path: str) -> None:
    method, path = method_and_path.split()
    for body in (b"", b"{", b"[" * 60_000, b'{"a":' * 9_000, b"\xff\xfe", b'{"a": "\\ud800"}'):
        error(wire(method, path, body), 400)
    for body in (b"null", b"1", b'"x"', b"[]", b"{}"):
        error(wire(method, path, body), 422)
    error(wire(method, path, b" " * 65_537), 413)
    error(wire(method, path, iter([b" " * 70_000])), 400)


@pytest.mark.parametrize("job_id", ["", "a%00", "x" * 301, "a%20"])
def test_an_id_that_is_none_is_refused(wire: Wire, job_id: str) -> None:
    for method, path in (("GET", "/jobs/batch_size"), ("DELETE", "/jobs")):
        assert "job_id" in error(wire(method, f"{path}?job_id={job_id}"), 422)
        error(wire(method, path), 422)


@pytest.mark.parametrize("job_id", [".", ".."])
def test_an_id_that_clients_remove_from_paths_is_refused(wire: Wire, job_id: str) -> None:
    message = error(wire("POST", "/jobs", zeus_job(job_id=job_id, job_id_prefix=".")), 422)
    assert f"{job_id!r} is not allowed in a URL's path; choose another id" in message
    made = wire("POST", "/jobs", zeus_job(job_id=None, job_id_prefix=job_id)).json()["job_id"]
    assert wire("GET", f"/api/v1/jobs/{made}").status_code == 200
