"""Power profiles over the wire, against the real service."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from service.api.wires import Api, problem
from service.jobs import spec_json
from service_process import ServiceProcess


@pytest.fixture(scope="module")
def any_service(service: ServiceProcess) -> ServiceProcess:
    """SQLite is enough: no statement on profiles differs from one database to another."""
    return service


def profile(**changes: Any) -> dict[str, Any]:
    return {
        "device_model": "Fake H100",
        "num_devices": 2,
        "batch_size": 32,
        "points": [
            {"limit_w": 300, "energy_j": 30.5, "time_s": 0.1},
            {"limit_w": 275, "energy_j": 28.25, "time_s": 0.11},
        ],
        "chosen_w": 275,
        "selector": "zeus-cost",
        "eta_knob": 0.5,
        "max_power_w": 600.0,
        "measured_at": "2026-05-04T12:00:00Z",
        **changes,
    }


def put(api: Api, job: str, **changes: Any) -> requests.Response:
    body = profile(**changes)
    return api("PUT", f"/jobs/{job}/power-profiles/{body['batch_size']}", body)


def sizes(api: Api, job: str, query: str = "") -> list[int]:
    answer = api("GET", f"/jobs/{job}/power-profiles{query}")
    assert answer.status_code == 200, answer.text
    return [profile["batch_size"] for profile in answer.json()["profiles"]]


def test_a_profile_comes_back_as_it_was_put(api: Api, job: str) -> None:
    first = put(api, job)
    assert (first.status_code, first.json()) == (201, profile())
    answer = api("GET", f"/jobs/{job}/power-profiles?device_model=Fake%20H100&num_devices=2")
    assert (answer.status_code, answer.json()) == (200, {"profiles": [profile()]})


def test_a_later_profile_replaces_the_one_of_the_same_batch_size_and_gpus(
    api: Api, job: str
) -> None:
    put(api, job)
    put(api, job, device_model="Fake A100")
    assert put(api, job, num_devices=4).status_code == 201
    assert put(api, job, chosen_w=300, selector="time").status_code == 200
    path = f"/jobs/{job}/power-profiles?device_model=Fake"
    for gpus, chosen_w in (("H100", 2), 300), (("H100", 4), 275), (("A100", 2), 275):
        answer = api("GET", f"{path} {gpus[0]}&num_devices={gpus[1]}")
        assert [each["chosen_w"] for each in answer.json()["profiles"]] == [chosen_w]


def test_profiles_are_listed_by_batch_size_of_some_gpus_or_all(api: Api, job: str) -> None:
    assert sizes(api, job) == []
    for size in (128, 8, 64):
        put(api, job, batch_size=size)
    put(api, job, batch_size=16, device_model="Fake A100")
    put(api, job, batch_size=32, num_devices=4)
    assert sizes(api, job, "?device_model=Fake H100") == [8, 32, 64, 128]
    assert sizes(api, job, "?device_model=Fake H100&num_devices=2") == [8, 64, 128]
    assert sizes(api, job) == [8, 16, 32, 64, 128]


def test_deleting_a_job_deletes_its_profiles(api: Api, job: str) -> None:
    put(api, job)
    assert api("DELETE", f"/jobs/{job}").status_code == 204
    assert api("POST", "/jobs", spec_json(job_id=job)).status_code == 201
    assert sizes(api, job) == []


def test_what_is_not_there_is_not_found(api: Api, job: str) -> None:
    problem(put(api, "no-such-job"), 404, "not_found")
    problem(api("GET", "/jobs/no-such-job/power-profiles"), 404, "not_found")
    put(api, job)
    assert sizes(api, job, "?device_model=fake h100") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"points": [{"limit_w": w, "energy_j": 1.0, "time_s": 1.0} for w in range(1, 502)]},
        {"batch_size": 33},
    ],
)
def test_a_profile_that_cannot_be_is_refused(api: Api, job: str, changes: dict[str, Any]) -> None:
    path = f"/jobs/{job}/power-profiles/32"
    problem(api("PUT", path, profile(**changes)), 422, "invalid")
    assert sizes(api, job) == []
