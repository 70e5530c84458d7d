"""A replay makes the choices and stops that a running service makes."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from uuid import uuid4

import pytest
from service.api.wires import Api, report
from service.jobs import LEARNING
from service.simulation import recorded
from service_process import ServiceProcess
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
    api, start = Api(service.url), {"hardware": asdict(workload.hardware)}
    assert api("POST", "/jobs", spec.model_dump(mode="json")).ok
    for trial in trials:
        found = api("POST", f"/jobs/{spec.job_id}/trials", start).json()
        assert found["trial_number"] == trial.number
        assert (found["batch_size"], found["why"]) == (trial.batch_size, trial.why)
        is_baseline = trial.why == "baseline"
        epochs = min(trial.epochs + PATIENCE * is_baseline, spec.max_epochs)
        target_epoch = trial.epochs if trial.result == "converged" else math.inf
        path = f"/jobs/{spec.job_id}/trials/{trial.number}"
        decisions = []
        for epoch in range(1, epochs + 1):
            spent = {name: epoch * getattr(trial, name) / epochs for name in ("time_s", "energy_j")}
            body = report(epoch, **spent, metric=1.0 - (epoch < target_epoch))
            decisions.append(api("POST", f"{path}/reports", body).json())
        assert {each["decision"] for each in decisions[:-1]} <= {"continue"}
        assert decisions[-1]["outcome"] == (None if is_baseline else trial.result)
        if is_baseline:
            assert api("PATCH", path, {"outcome": "completed"}).ok
        assert decisions[-1]["cost"] == pytest.approx(trial.cost)
