"""A defect of an installed policy names it; it is none of the job's row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flask import Flask
from service.jobs import register
from zeus_service import maintenance, optimizer
from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.installed import InstalledPolicy
from zeus_service.bandit.policy import ArmEstimate, Choice
from zeus_service.bandit.registry import POLICIES
from zeus_service.errors import PolicyFailed
from zeus_service.messages import Report


class OwnPolicy(DefaultPolicy):
    """The default policy, as one of a user's own."""

    name = "own"


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Install a policy one of whose functions is replaced, and register a job with it."""

    def install(function: str, replacement: Callable[..., Any]) -> None:
        monkeypatch.setitem(POLICIES, "own", InstalledPolicy(OwnPolicy()))
        register(policy="own")
        optimizer.start_trial("job", None)
        monkeypatch.setattr(OwnPolicy, function, replacement)

    return install


def converge(number: int = 1) -> None:
    report = Report(sequence=1, epoch=1, time_s=1.0, energy_j=10.0, metric=1.0)
    optimizer.report("job", number, report)


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("oops")


def test_an_error_of_a_policy_names_it_and_its_traceback_is_logged(
    app: Flask,
    returns: Callable[[str, Callable[..., Any]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    returns("next_batch_size", fail)
    answer = app.test_client().post("/api/v1/jobs/job/trials", json={})
    assert (answer.status_code, answer.get_json()["code"]) == (500, "policy_failed")
    detail = answer.get_json()["detail"]
    assert "policy 'own': its next_batch_size() for job 'job' raised ZeroDivisionError" in detail
    assert "oops (test_installed.py, line " in detail
    assert "cannot be read" not in detail
    assert "Traceback" in caplog.text
    assert 'raise ZeroDivisionError("oops")' in caplog.text


def test_the_other_jobs_are_listed_beside_that_of_a_policy_that_fails(
    app: Flask,
    returns: Callable[[str, Callable[..., Any]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    returns("stage", fail)
    register(job_id="other", policy="zeus")
    answer = app.test_client().get("/api/v1/jobs").get_json()
    assert [job["stage"] for job in answer["jobs"]] == ["broken", "pruning 1/2"]
    assert "policy 'own': its stage() for job 'job' raised ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("function", "value", "named"),
    [
        ("next_batch_size", Choice(7, "explore"), "the batch size 7, which the job does not have"),
        (
            "next_batch_size",
            Choice(32.0, "explore"),
            "the batch size 32.0, which is not an integer",
        ),
        ("next_batch_size", Choice(32, "guess"), ".*which is not a Choice"),
        ("next_batch_size", 32, "32, which is not a Choice"),
        ("begin", [], r"\[\], which is not a dict"),
        ("begin", {}, r"a state without \['converged', 'failed', 'm2', 'mean'\]"),
        ("observe", {"mean": np.zeros(2)}, "a state that is not JSON: .*ndarray"),
        ("observe", {"mean": math.nan}, "a state that is not JSON"),
        ("cost_bound", math.nan, "nan, which is not a cost"),
        ("best_batch_size", 7, "the batch size 7, which the job does not have"),
        ("stage", None, "None, which is not a text"),
        ("describe", [ArmEstimate(32, 1, 1.0, None, "alive")], ".*one for each batch size"),
        ("describe", [ArmEstimate(32, 1, math.inf, None, "alive")], ".*which is not finite"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("app")
def test_a_result_that_cannot_be_used_is_refused_where_it_is_returned(
    returns: Callable[[str, Callable[..., Any]], None], function: str, value: Any, named: str
) -> None:
    def use_them_all() -> None:
        optimizer.start_trial("job", None)
        converge()
        optimizer.get_job("job")

    returns(function, lambda *_: value)
    text = rf"policy 'own': its {function}\(\) for job 'job' returned {named}"
    with pytest.raises(PolicyFailed, match=text):
        use_them_all()


@pytest.mark.usefixtures("app")
def test_the_numbers_of_numpy_are_stored_as_numbers(
    returns: Callable[[str, Callable[..., Any]], None],
) -> None:
    returns("next_batch_size", lambda *_: Choice(np.int64(64), "explore"))
    assert optimizer.start_trial("job", None)[0].batch_size == 64
    assert maintenance.rebuild("job") is True
    converge(2)
    assert maintenance.rebuild("job") is True
