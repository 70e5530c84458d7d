"""A replay makes the choices and stops that a running service makes."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any
from uuid import uuid4

import pytest
import requests
from service.jobs import LEARNING
from service.simulation import recorded
from service_process import ServiceProcess
from waiting import LIMIT_S
from zeus_service.bandit.registry import POLICIES
from zeus_service.simulation.replay import PATIENCE, replay
from zeus_service.simulation.workload import Setting, Workload


def one_limit() -> Workload:
    """With one power limit an epoch that profiles costs what any does, as the service expects."""
    works = recorded.workload()
    settings = {
        size: Setting(setting.target_epochs, {200.0: setting.epochs[200.0]})
        for size, setting in works.settings.items()
    }
    return replace(works, settings=settings)


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = requests.post(url, json=body, timeout=LIMIT_S)
    assert answer.ok, answer.text
    message: dict[str, Any] = answer.json()
    return message


@pytest.mark.parametrize("target", [1.0, None], ids=["given", "learned"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_live_service_gives_the_history_of_the_replay(
    service: ServiceProcess, policy: str, target: float | None
) -> None:
    workload = one_limit()
    spec = workload.spec(job_id=f"replayed-{uuid4().hex}", policy=policy, seed=11, beta_knob=1.6)
    spec = spec.model_copy(update={"target_metric": target})
    trials = replay(workload, spec, 14)
    if policy in LEARNING:
        assert {trial.result for trial in trials} >= {"converged", "early_stopped"}
    jobs = f"{service.url}/api/v1/jobs"
    post(jobs, spec.model_dump(mode="json"))
    for trial in trials:
        started = post(f"{jobs}/{spec.job_id}/trials", {"hardware": asdict(workload.hardware)})
        reports = f"{jobs}/{spec.job_id}/trials/{trial.number}/reports"
        reports += f"?generation={started['generation']}"
        assert started["trial_number"] == trial.number
        assert (started["batch_size"], started["why"]) == (trial.batch_size, trial.why)
        is_baseline = trial.why == "baseline"
        epochs = min(trial.epochs + PATIENCE * is_baseline, spec.max_epochs)
        epoch_s = trial.time_s / epochs
        epoch_j = trial.energy_j / epochs
        target_epoch = trial.epochs if trial.result == "converged" else math.inf
        decisions = [
            post(
                reports,
                {
                    "sequence": epoch,
                    "epoch": epoch,
                    "time_s": epoch * epoch_s,
                    "energy_j": epoch * epoch_j,
                    "metric": 1.0 - (epoch < target_epoch),
                },
            )
            for epoch in range(1, epochs + 1)
        ]
        assert {each["decision"] for each in decisions[:-1]} <= {"continue"}
        assert decisions[-1]["outcome"] == (None if is_baseline else trial.result)
        if is_baseline:
            path = f"{jobs}/{spec.job_id}/trials/{trial.number}"
            generation = {"generation": started["generation"]}
            ended = requests.patch(path, params=generation, json={"outcome": "completed"})
            assert ended.ok, ended.text
        assert decisions[-1]["cost"] == pytest.approx(trial.cost)
