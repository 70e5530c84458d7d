"""Ranks of one run under Zeus's client: each reports for the same trial, all get one answer."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from service.api.wires import Wire, result, zeus_job
from service_process import ServiceProcess

RANKS = 4


@pytest.fixture(scope="module")
def wire(any_service: ServiceProcess) -> Wire:
    return Wire(any_service.url)


class Ranks:
    """The ranks of a run, which send their requests at the same moment; the first starts it."""

    def __init__(self, wire: Wire, job: dict[str, Any]) -> None:
        self._wire = wire
        self._barrier, self._threads = Barrier(RANKS), ThreadPoolExecutor(RANKS)
        registered = self._together("/jobs", [job] * RANKS)
        assert {status for status, _ in registered} <= {200, 201}
        self.trial = wire.start(job["job_id"])

    def report(self, epoch: int, figures: list[dict[str, float]]) -> dict[str, Any]:
        """Report an epoch, each rank with figures of its own; the one answer without its text."""
        bodies = [result(self.trial, epoch, **each) for each in figures]
        answers = []
        for status, answer in self._together("/report", bodies):
            assert status == 200, answer
            assert answer.pop("message")
            answers.append(answer)
        assert answers == [answers[0]] * RANKS
        return answers[0]

    def _together(
        self, path: str, bodies: list[dict[str, Any]]
    ) -> list[tuple[int, dict[str, Any]]]:
        def send(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            self._barrier.wait()
            response = self._wire("POST", path, json.dumps(body).encode())  # NaN, as Python has it
            return response.status_code, response.json()

        return list(self._threads.map(send, bodies))


def test_a_rank_that_reports_an_epoch_after_another_is_not_refused(wire: Wire) -> None:
    assert wire("POST", "/jobs", zeus_job(job_id="zeus-second")).status_code == 201
    trial = wire.start("zeus-second")
    for epoch in (1, 2):
        for metric in (0.1, 0.2, 0.9):  # the first that reports an epoch decides
            response = wire("POST", "/report", result(trial, epoch, metric=metric, time=metric))
            assert (response.status_code, response.json()["stop_train"]) == (200, False)
    for metric in (0.9, 0.1):
        answer = wire("POST", "/report", result(trial, 3, metric=metric)).json()
        assert (answer["stop_train"], answer["converged"]) == (True, True)


def test_a_diverged_rank_does_not_stop_alone(wire: Wire) -> None:
    wire("POST", "/jobs", zeus_job(job_id="zeus-one-nan"))
    trial = wire.start("zeus-one-nan")
    nan = json.dumps(result(trial, 1, metric=float("nan"))).encode()
    assert wire("POST", "/report", result(trial, 1)).json()["stop_train"] is False
    assert wire("POST", "/report", nan).json()["stop_train"] is False
    nan = json.dumps(result(trial, 2, metric=float("nan"))).encode()
    assert wire("POST", "/report", nan).json()["stop_train"] is True
    assert wire("POST", "/report", result(trial, 2)).json()["stop_train"] is True
    assert wire.outcomes("zeus-one-nan") == ["diverged"]


def test_a_rank_goes_on_with_its_epoch_when_the_exit_handler_of_a_fork_has_run(wire: Wire) -> None:
    wire("POST", "/jobs", zeus_job(job_id="zeus-fork"))
    trial = wire.start("zeus-fork")
    assert wire("POST", "/report", result(trial, 1)).json()["stop_train"] is False
    wire("PATCH", "/trials", trial)
    assert wire("POST", "/report", result(trial, 1, time=1.0)).json()["stop_train"] is False
    for time_s in (21.0, 22.0):
        assert wire("POST", "/report", result(trial, 2, time=time_s)).json()["stop_train"] is False
    assert wire.outcomes("zeus-fork") == [None]


@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_report_at_once_all_stop_or_all_go_on(wire: Wire, seed: int) -> None:
    rng = random.Random(seed)
    job_id, energy = f"zeus-at-once-{seed}", 0.0
    knobs = {"eta_knob": 1.0, "max_epochs": 4, "beta_knob": 1.0}
    job = zeus_job(job_id=job_id, batch_sizes=[16], **knobs)
    first = Ranks(wire, job)
    assert first.report(1, [{"energy": 1000.0, "metric": 0.9}] * RANKS)["converged"]
    run = Ranks(wire, job)
    for epoch in range(1, 5):
        energy += 230.0
        figures = [
            {
                "energy": energy * rng.uniform(0.9, 1.2),  # the bound is 1000 J
                "time": epoch * rng.uniform(9.0, 11.0),
                "metric": rng.choice(
                    [0.1, 0.3, 0.3, 0.6] if seed % 2 else [0.1, 0.3, float("nan")]
                ),
            }
            for _ in range(RANKS)
        ]
        answer = run.report(epoch, figures)
        if answer["stop_train"]:
            break
    assert answer["stop_train"]
    again = run.report(epoch, figures)
    assert again == answer
    outcome = wire.outcomes(job_id)[1]
    assert (outcome == "converged") is answer["converged"]
    assert outcome in ("converged", "early_stopped", "not_converged", "diverged")
