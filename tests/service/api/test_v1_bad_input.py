"""Whatever is sent to the wire, version 1, that cannot be taken is refused by name."""

from __future__ import annotations

import json
import time

import pytest
import requests
from flask import Flask
from service.api.wires import Api, problem, report
from service.conftest import on_sqlite
from service.jobs import START, spec_json
from service_process import ServiceProcess
from waiting import LIMIT_S


@pytest.fixture(scope="module")
def any_service(service: ServiceProcess) -> ServiceProcess:
    """SQLite is enough: what is refused here reaches no database."""
    return service


NUMBERS = [10**400, -1, "1", True]
UNSUITED = {
    "batch_sizes": [[], [0], ["8"], [8, 8], list(range(999))],
    "default_batch_size": [*NUMBERS, 7],
    "target_metric": [10**400, 1e300, "1"],
    "max_epochs": [*NUMBERS, 0],
    "eta_knob": [1.01, -0.01, "0.5"],
    "beta_knob": [0, "2", 1e300],
    "num_pruning_rounds": NUMBERS,
    "window_size": [*NUMBERS, 1001],
    "lease_s": [0, 1e300, "900"],
    "seed": [-1, 1.5, 2**32],
    "baseline_runs": [1, 21, 2.5],
    "policy": ["", "best", 1],
    "monitor": ["", 1, "\x00", "x" * 300],
    "batch_size_scope": ["", 1, "local"],
    "job_id": ["", None, "..", "a/b", "a b", "a\n", "é", "\x00", "x" * 256],
    "higher_is_better": [2, 1, "maybe"],
}


@pytest.mark.parametrize("field", UNSUITED)
def test_a_job_with_an_unsuited_value_is_refused_by_name(api: Api, field: str) -> None:
    for value in UNSUITED[field]:
        given = spec_json(**{"job_id": "unsuited", field: value})
        body = problem(api.raw("/jobs", json.dumps(given)), 422, "invalid")
        assert {name.split(".")[0] for name in body["errors"]} == {field}
    problem(api("GET", "/jobs/unsuited"), 404, "not_found")


HARDWARE = {
    "device_model": ["", None, 1, "a\nb"],
    "num_devices": [*NUMBERS, None, 0],
    "max_power_w": [0, -1, "1", True, None, 10**400, 1e300],
    "meter": ["", None, 1, "x" * 300],
    "estimated": [None, 1, "true"],
}


@pytest.mark.parametrize("field", HARDWARE)
def test_a_start_on_unsuited_hardware_is_refused_by_name(api: Api, job: str, field: str) -> None:
    for value in HARDWARE[field]:
        start = {"hardware": {**START["hardware"], field: value}}
        body = problem(api.raw(f"/jobs/{job}/trials", json.dumps(start)), 422, "invalid")
        assert set(body["errors"]) == {f"hardware.{field}"}
    assert api("GET", f"/jobs/{job}").json()["hardware"] == []


@pytest.mark.parametrize(
    "field", ["batch_sizes", "default_batch_size", "monitor", "higher_is_better"]
)
def test_a_new_job_that_lacks_a_field_is_refused_by_name(api: Api, field: str) -> None:
    for given in (spec_json(job_id="lacks"), spec_json(job_id="lacks", **{field: None})):
        lacking = {name: value for name, value in given.items() if name != field or value is None}
        body = problem(api("POST", "/jobs", lacking), 422, "invalid")
        assert body["errors"] == {field: ["Field required"]}


def test_a_default_that_is_not_offered_is_refused_by_name(api: Api) -> None:
    given = spec_json(job_id="lacks", default_batch_size=None, suggested={"default_batch_size": 7})
    body = problem(api("POST", "/jobs", given), 422, "invalid")
    assert body["errors"] == {
        "default_batch_size": ["7 is not among batch_sizes [8, 16, 32, 64, 128]"]
    }


@pytest.mark.parametrize("field", ["sequence", "epoch", "time_s", "energy_j", "metric"])
def test_a_report_with_an_unsuited_value_changes_nothing(
    api: Api, job: str, trial: str, field: str
) -> None:
    values = [10**400, 1e300, -1e300, "1", True, None, [], {}]
    if field != "metric":
        values.append(-1)
    for value in values:
        body = problem(
            api.raw(f"{trial}/reports", json.dumps({**report(), field: value})), 422, "invalid"
        )
        assert field in body["errors"]
    assert api("GET", f"/jobs/{job}/trials").json()["trials"][0]["epoch"] == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_none_are_refused(api: Api, trial: str, number: str) -> None:
    for field in ("time_s", "energy_j", "metric", "epoch"):
        body = json.dumps({**report(), field: "HERE"}).replace('"HERE"', number)
        assert api.raw(f"{trial}/reports", body).status_code in (400, 422)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"1", b'"x"', b"[]", b"[" * 60_000, b'{"a":' * 9_000, b"\xff\xfe", b"\x00",
     b'{"job_id": "\\ud800"}'],
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused(api: Api, trial: str, body: bytes) -> None:
    for path in ("/jobs", "/jobs/x/trials", f"{trial}/reports", f"{trial}/heartbeat"):
        assert api.raw(path, body).status_code in (400, 422)


def test_a_chunked_body_is_taken_up_to_64_kib(api: Api, job: str) -> None:
    def post(body: bytes) -> requests.Response:
        headers = {"Content-Type": "application/json"}
        path = f"{api.root}/api/v1/jobs/{job}/trials"
        return requests.post(path, iter([body]), headers=headers, timeout=LIMIT_S)

    start = json.dumps(START).encode()
    assert post(b" " * (65_536 - len(start)) + start).status_code == 201
    problem(post(b" " * 65_536 + start), 400, "malformed")


def test_a_body_over_64_kib_is_refused(api: Api) -> None:
    body = json.dumps({**spec_json(), "padding": "x" * 65_536})
    problem(api.raw("/jobs", body), 413, "too_large")


def test_a_body_that_is_not_declared_json_is_refused(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        for path in ("/jobs", "/jobs/x/trials"):
            url, headers = f"{api.root}/api/v1{path}", {"Content-Type": kind}
            response = requests.post(url, b"{}", headers=headers, timeout=LIMIT_S)
            problem(response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path",
    ["/jobs/..%2f..%2fetc", "/jobs/%00", "/jobs/" + "x" * 400, "/jobs//trials", "/jobs/a%20b",
     "/jobs/x/trials/0/reports", "/jobs/x/trials/-1/reports", "/jobs/x/trials/" + "9" * 30,
     "/nothing"],
)  # fmt: skip
def test_a_path_that_names_nothing_is_not_found(api: Api, path: str) -> None:
    for method in ("GET", "POST", "PATCH", "DELETE"):
        response = requests.request(
            method,
            f"{api.root}/api/v1{path}",
            data=b"{}",
            headers={"Content-Type": "application/json"},
            timeout=LIMIT_S,
        )
        assert response.status_code in (404, 405)
        assert response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("query", ["", "?generation=", f"?generation={'x' * 33}"])
def test_a_call_of_a_trial_without_its_generation_is_refused(
    api: Api, job: str, trial: str, query: str
) -> None:
    before = api("GET", f"/jobs/{job}/trials").json()
    for method, path, body in (
        ("POST", f"{trial}/reports", report(metric=1.0)),
        ("POST", f"{trial}/heartbeat", {}),
        ("PATCH", trial, {"outcome": "errored"}),
    ):
        answer = api(method, f"{path}{query}", body, params={})
        refused = problem(answer, 422, "invalid")
        assert refused["errors"].keys() == {"generation"}
    assert api("GET", f"/jobs/{job}/trials").json() == before


def test_a_malformed_idempotency_key_is_refused(api: Api, job: str) -> None:
    for key in ("", "a b", "x" * 256, "\x7f"):
        response = api("POST", f"/jobs/{job}/trials", START, headers={"Idempotency-Key": key})
        assert response.status_code in (400, 422)
    assert api("GET", f"/jobs/{job}/trials").json()["trials"] == []


def test_unknown_members_are_ignored(api: Api) -> None:
    given = spec_json(job_id="unknown-members", something_new={"a": 1})
    assert api("POST", "/jobs", given).status_code == 201


@on_sqlite
def test_the_time_that_a_body_takes_grows_with_its_size_alone(app: Flask) -> None:
    """A check that compares each member with each takes a second for 60 KB."""
    client = app.test_client()

    def seconds(members: int) -> float:
        body = {f"{number:x}": 0 for number in range(members)}
        before = time.process_time()
        assert client.post("/api/v1/jobs", json=body).status_code == 422
        return time.process_time() - before

    seconds(1)  # imports what the first request needs
    assert min(seconds(6000) for _ in range(3)) < 0.1
