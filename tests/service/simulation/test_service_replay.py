"""The same history through the service's door, in this process and over HTTP."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
import requests
from service.jobs import LEARNING
from service.simulation import recorded
from service_process import ServiceProcess, free_port
from waiting import LIMIT_S
from zeus_service.bandit.registry import POLICIES
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.replay import replay
from zeus_service.simulation.service_replay import (
    HttpService,
    InProcessService,
    replay_with_reports,
)
from zeus_service.simulation.synthetic_workloads import synthetic_workload
from zeus_service.simulation.workload import Setting, Workload

policies = pytest.mark.parametrize("policy", POLICIES)


def one_limit() -> Workload:
    """With one power limit an epoch that profiles costs what any does, as the service expects."""
    works = recorded.workload()
    settings = {
        size: Setting(setting.target_epochs, {200.0: setting.epochs[200.0]})
        for size, setting in works.settings.items()
    }
    return replace(works, settings=settings)


@pytest.mark.parametrize("policy", LEARNING)
def test_a_live_service_gives_the_history_of_the_replay(
    service: ServiceProcess, policy: str
) -> None:
    workload = one_limit()
    spec = workload.spec(job_id=f"replayed-{uuid4().hex}", policy=policy, seed=10, beta_knob=1.6)
    expected = replay(workload, spec, 14)
    assert {trial.verdict for trial in expected} >= {"converged", "early_stopped"}
    with HttpService(service.url, spec) as http:
        live = replay_with_reports(workload, spec, 14, http)
    assert [(trial.batch_size, trial.verdict, trial.cost) for trial in live] == [
        (trial.batch_size, trial.verdict, trial.cost) for trial in expected
    ]
    assert live == expected


@policies
def test_the_service_decides_the_same_in_this_process(service: ServiceProcess, policy: str) -> None:
    workload = recorded.workload()
    spec = workload.spec(job_id=f"replayed-{uuid4().hex}", policy=policy, seed=5, beta_knob=1.3)
    with HttpService(service.url, spec) as http:
        live = replay_with_reports(workload, spec, 10, http)
    assert live == replay_with_reports(workload, spec, 10, InProcessService(spec))


@policies
def test_reports_stop_nearly_where_the_replay_does(policy: str) -> None:
    workload = synthetic_workload(4)
    spec = workload.spec(policy=policy, seed=1)
    replayed = sum(trial.cost for trial in replay(workload, spec, 100))
    reported = sum(t.cost for t in replay_with_reports(workload, spec, 100, InProcessService(spec)))
    assert reported == pytest.approx(replayed, rel=0.02)


def test_the_job_is_deleted_afterwards(service: ServiceProcess) -> None:
    spec = recorded.workload().spec(job_id=f"replayed-{uuid4().hex}", policy="zeus", seed=1)
    with HttpService(service.url, spec):
        assert requests.get(f"{service.url}/api/v1/jobs/{spec.job_id}", timeout=LIMIT_S).ok
    assert (
        requests.get(f"{service.url}/api/v1/jobs/{spec.job_id}", timeout=LIMIT_S).status_code == 404
    )


def test_a_service_that_is_not_there_is_told() -> None:
    spec = recorded.workload().spec(policy="zeus", seed=1)
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(SimulationError, match=f"{url}.*is the service running there"),
        HttpService(url, spec),
    ):
        pass


def test_what_a_service_refuses_is_told(service: ServiceProcess) -> None:
    spec = recorded.workload().spec(job_id=f"replayed-{uuid4().hex}", policy="unheard-of", seed=1)
    with pytest.raises(SimulationError, match="unheard-of"), HttpService(service.url, spec):
        pass
