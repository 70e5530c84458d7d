"""The wire of the Zeus project's own server, against the real service."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from service.api.wires import Wire, error, result, zeus_job
from service.jobs import spec_json
from zeus_service import create_app
from zeus_service.config import Config

_numbers = itertools.count()


@pytest.fixture
def job(wire: Wire) -> str:
    """The id of a registered job of the test's own."""
    job_id = f"zeus-{next(_numbers)}"
    assert wire("POST", "/jobs", zeus_job(job_id=job_id)).status_code == 201
    return job_id


@pytest.fixture
def trial(wire: Wire, job: str) -> dict[str, Any]:
    """The first trial of a job of the test's own."""
    return wire.start(job)


def test_a_job_that_learns_its_target_takes_the_one_that_this_client_has(wire: Wire) -> None:
    """A client of the Zeus project always has a target, and sends no number of baselines."""
    spec = {name: zeus_job()[name] for name in ("batch_sizes", "default_batch_size", "max_epochs")}
    learns = spec_json(job_id="zeus-learns", policy="zeus", **spec)
    learns |= {"target_metric": None, "baseline_runs": 5, "monitor": "metric"}
    assert wire("POST", "/api/v1/jobs", None, json=learns).status_code == 201
    assert wire("POST", "/jobs", zeus_job(job_id="zeus-learns")).status_code == 201
    answer = wire("GET", "/api/v1/jobs/zeus-learns").json()
    assert (answer["target_metric"], answer["spec"]["baseline_runs"]) == (0.5, 5)
    assert wire.start("zeus-learns")["batch_size"] == 16


def test_a_job_is_answered_with_all_that_it_is(wire: Wire) -> None:
    given = {
        "job_id": None,
        "job_id_prefix": "my.job",
        "batch_sizes": [32, 8, 16],
        "default_batch_size": 16,
        "max_power": 600,
        "number_of_gpus": 2,
        "gpu_model": "Fake GPU",
    }
    response = wire("POST", "/jobs", given)
    assert response.status_code == 201
    job_id = response.json()["job_id"]
    assert re.fullmatch("my[.]job-[0-9a-f]{8}", job_id)
    complete = {
        **given,
        "job_id": job_id,
        "batch_sizes": [8, 16, 32],
        "eta_knob": 0.5,
        "beta_knob": 2.0,
        "target_metric": 0.5,
        "higher_is_better_metric": True,
        "max_epochs": 100,
        "num_pruning_rounds": 2,
        "window_size": 0,
        "mab_prior_mean": 0.0,
        "mab_prior_precision": 0.0,
        "mab_num_explorations": 2,
        "mab_seed": None,
    }
    assert response.json() == complete
    again = wire("POST", "/jobs", {**complete, "batch_sizes": [32, 8, 16]})
    assert (again.status_code, again.json()) == (200, complete)
    assert wire("POST", "/jobs", given).json()["job_id"] != job_id


def test_what_a_job_asks_of_the_bandit_is_what_it_gets(wire: Wire) -> None:
    asked = {
        "mab_prior_mean": -7.5,
        "mab_prior_precision": 0.25,
        "mab_num_explorations": 3,
        "mab_seed": 11,
        "window_size": 4,
        "num_pruning_rounds": 1,
        "beta_knob": None,
        "eta_knob": 0.25,
        "higher_is_better_metric": False,
    }
    response = wire("POST", "/jobs", zeus_job(job_id="zeus-asked", **asked))
    assert response.json().items() >= asked.items()
    spec = wire("GET", "/api/v1/jobs/zeus-asked").json()["spec"]
    ours = {"mab_seed": "seed", "higher_is_better_metric": "higher_is_better"}
    assert spec.items() >= {ours.get(name, name): value for name, value in asked.items()}.items()
    assert (spec["policy"], spec["monitor"]) == ("zeus", "metric")
    assert (spec["early_stop"], spec["lease_s"]) == ("spent", 21600.0)


def test_unknown_keys_are_ignored_those_of_the_other_wire_included(wire: Wire) -> None:
    other = {"something": {}, "policy": 7, "lease_s": 1, "max_power_w": "x", "monitor": None}
    assert wire("POST", "/jobs", zeus_job(job_id="zeus-unknown", **other)).status_code == 201
    assert wire("GET", "/api/v1/jobs/zeus-unknown").json()["spec"]["lease_s"] == 21600.0


def test_a_job_known_with_another_configuration_is_refused(wire: Wire, job: str) -> None:
    for name, value in {"max_epochs": 11, "mab_seed": 3, "gpu_model": "Other GPU"}.items():
        message = error(wire("POST", "/jobs", zeus_job(job_id=job, **{name: value})), 409)
        assert "is registered with" in message
        assert repr(value) in message
    wire("POST", "/jobs", zeus_job(job_id="zeus-seed", mab_seed=3))
    error(wire("POST", "/jobs", zeus_job(job_id="zeus-seed")), 409)  # a seed left open


def test_a_job_of_one_wire_is_known_to_the_other(wire: Wire, job: str) -> None:
    spec = {"batch_sizes": [8, 16, 32], "default_batch_size": 16, "target_metric": 0.5}
    here = spec_json(job_id=job, monitor="metric", lease_s=21600, **spec)
    assert wire("POST", "/api/v1/jobs", None, json=here).status_code == 200
    there = spec_json(job_id="zeus-v1", **spec)
    assert wire("POST", "/api/v1/jobs", None, json=there).status_code == 201
    assert wire("POST", "/jobs", zeus_job(job_id="zeus-v1")).status_code == 200
    assert wire("POST", "/jobs", zeus_job(job_id="zeus-v1", eta_knob=0.25)).status_code == 409


def test_a_start_says_what_to_train_with_and_is_not_cached(wire: Wire, job: str) -> None:
    assert wire.start(job) == {"job_id": job, "batch_size": 16, "trial_number": 1}
    response = wire("GET", f"/jobs/batch_size?job_id={job}")
    assert response.json() == {"job_id": job, "batch_size": 16, "trial_number": 2}
    assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("metric", [0.9, 0.1])
def test_any_report_after_the_end_gets_the_outcome(
    wire: Wire, trial: dict[str, Any], metric: float
) -> None:
    assert not wire("POST", "/report", result(trial, 8)).json()["stop_train"]
    for number, epoch in enumerate((10, 10, 11, 8, 3)):
        answer = wire("POST", "/report", result(trial, epoch, metric=metric)).json()
        assert answer["stop_train"]
        assert answer["converged"] == (metric == 0.9)
        assert answer["message"].endswith("was already reported.") == (number > 0)


def test_a_run_past_the_bound_has_failed_even_at_its_target(
    wire: Wire, job: str, trial: dict[str, Any]
) -> None:
    wire("POST", "/report", result(trial, metric=0.9))  # a cost of 750 J: a bound of 1500 J
    second = wire.start(job)
    at_bound = wire("POST", "/report", result(second, time=10.0, energy=2000.0)).json()
    assert at_bound["stop_train"] is False  # the next is expected past it, but this is not
    past = wire("POST", "/report", result(second, 2, time=10.0, energy=2000.1, metric=0.9)).json()
    assert (past["stop_train"], past["converged"]) == (True, False)
    assert "it has cost 1,500 J so far, over its stop limit of 1,500 J" in past["message"]
    assert wire.outcomes(job) == ["converged", "early_stopped"]


@pytest.mark.parametrize("metric", ["NaN", "Infinity", "-Infinity", "1e999", "2e30"])
def test_a_metric_that_is_no_number_ends_the_run_as_diverged(
    wire: Wire, job: str, trial: dict[str, Any], metric: str
) -> None:
    body = json.dumps(result(trial, metric="HERE")).replace('"HERE"', metric).encode()
    for _ in range(2):
        answer = wire("POST", "/report", body).json()
        assert (answer["stop_train"], answer["converged"]) == (True, False)
    assert wire.outcomes(job) == ["diverged"]


def test_a_job_whose_batch_sizes_have_all_failed_says_so(wire: Wire, job: str) -> None:
    for batch_size in (16, 32):
        trial = wire.start(job)
        assert trial["batch_size"] == batch_size
        wire("POST", "/report", result(trial, 10))
    for _ in range(2):
        response = wire("GET", f"/jobs/batch_size?job_id={job}")
        assert "no batch size left" in error(response, 409)
    assert wire.outcomes(job) == ["not_converged", "not_converged"]


def test_a_job_is_deleted_with_its_running_trials(wire: Wire, trial: dict[str, Any]) -> None:
    job_id = trial["job_id"]
    assert wire("DELETE", f"/jobs?job_id={job_id}").status_code == 200
    error(wire("DELETE", f"/jobs?job_id={job_id}"), 404)
    error(wire("POST", "/report", result(trial)), 400)
    assert wire("POST", "/jobs", zeus_job(job_id=job_id)).status_code == 201
    assert wire.start(job_id)["trial_number"] == 1


def test_what_is_not_known_has_the_status_of_zeus_own_server(
    wire: Wire, trial: dict[str, Any]
) -> None:
    error(wire("GET", "/jobs/batch_size?job_id=unknown"), 400)
    others = [{"job_id": "unknown"}, {"trial_number": 2}, {"batch_size": 8}]
    for other in others:
        error(wire("POST", "/report", result({**trial, **other})), 400)
        error(wire("PATCH", "/trials", {**trial, **other}), 404)
    assert wire.outcomes(trial["job_id"]) == [None]


def test_json_may_be_declared_and_nothing_else(wire: Wire, trial: dict[str, Any]) -> None:
    for kind, status in (
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ):
        response = wire("POST", "/report", result(trial), headers={"Content-Type": kind})
        assert response.status_code == status
        if status == 415:
            error(response, 415)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Referer", "http://evil.example/"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Dest", "image"),
        ("Cookie", "zeus=x"),
        ("Accept", "image/avif,image/webp,*/*;q=0.8"),
        ("Accept", "text/html,*/*;q=0.8"),
        ("Accept-Language", "en"),
        ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"),
    ],
)
def test_a_web_page_starts_nothing(wire: Wire, job: str, header: str, value: str) -> None:
    headers = {header: value}
    error(wire("GET", f"/jobs/batch_size?job_id={job}", headers=headers), 403)
    error(wire("DELETE", f"/jobs?job_id={job}", headers=headers), 403)
    assert wire.outcomes(job) == []


def test_a_service_without_a_database_says_so_in_zeus_form(tmp_path: Path) -> None:
    app = create_app(Config(database_url=f"sqlite:///{tmp_path}/none/none.sqlite3"))
    response = app.test_client().get("/jobs/batch_size?job_id=x")
    assert response.status_code == 503
    assert set(response.get_json()) == {"message"}


def test_only_get_starts_a_trial(wire: Wire, job: str) -> None:
    assert wire("HEAD", f"/jobs/batch_size?job_id={job}").status_code == 405
    assert wire.outcomes(job) == []
