"""One recurring job through the service's own door: trials are started, and report every epoch.

The replay stops a run before the epoch that would cross the bound. The service cannot: it hears of
a run after its first epoch, and takes what the last epoch cost for the price of the next. Here the
service decides, in this process or over HTTP, and both give the same history.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Protocol, Self

from zeus_service import stopping
from zeus_service.messages import Decision, Report, TrialStart
from zeus_service.policies import Choice, policy_of
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.job import SimulatedJob
from zeus_service.simulation.machine import Machine, Run, Started, Trial, taken
from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.workload import Drift, Workload
from zeus_service.spec import JobSpec


class Door(Protocol):
    """What a run asks of the service."""

    def start(self) -> Started:
        """Start a trial."""

    def report(self, started: Started, report: Report) -> Decision:
        """Report an epoch; the answer says whether the run goes on."""


def replay_reported(
    workload: Workload | Drift, spec: JobSpec, recurrences: int, door: Door
) -> list[Trial]:
    """Let a job recur, as `zeus_service.simulation.replay.replay` does; the service stops its runs.

    Raises:
        SimulationError: Every batch size has failed, or the service does not do as it should.
    """
    machine = Machine(spec)
    trials: list[Trial] = []
    for recurrence in range(recurrences):
        now = workload.at(recurrence)
        for _ in range(MAX_TRIES):
            started = door.start()
            ended = _run(machine, now, spec, started, door)
            trials.append(machine.ended(now, started, recurrence, ended))
            if ended.verdict == "converged":
                break
    return trials


def _run(machine: Machine, workload: Workload, spec: JobSpec, started: Started, door: Door) -> Run:
    batch_size = started.choice.batch_size
    price = machine.price(workload, batch_size)
    target_epoch = machine.target_epoch(workload, batch_size)
    profiling = machine.first_try(batch_size)
    for epoch in range(1, spec.max_epochs + 1):
        time_s, energy_j = taken(price, epoch, profiling=profiling)
        metric = spec.target_metric if epoch >= target_epoch else spec.target_metric - 1
        report = Report(
            sequence=epoch, epoch=epoch, time_s=time_s, energy_j=energy_j, metric=metric
        )
        decision = door.report(started, report)
        if decision.outcome in ("converged", "early_stopped", "not_converged"):
            return Run(decision.outcome, epoch, time_s, energy_j)
    raise SimulationError(
        f"the service let trial {started.number} go on after its last epoch, {spec.max_epochs}"
    )


class LocalDoor:
    """The service's decisions, without the service."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._job = SimulatedJob(spec)
        self._cost = 0.0

    def start(self) -> Started:
        """Start a trial."""
        self._cost = 0.0
        return self._job.start()

    def report(self, started: Started, report: Report) -> Decision:
        """Decide, and end the trial if it is to stop."""
        bound = policy_of(self._spec).cost_bound(self._spec, self._job.state)
        decision = stopping.decide(
            self._spec,
            report,
            previous_cost=self._cost,
            cost_bound=bound if math.isfinite(bound) else None,
        )
        self._cost = decision.cost
        if decision.outcome in ("converged", "early_stopped", "not_converged"):
            self._job.end(started.number, started.choice, decision.outcome, decision.cost)
        return decision


class HttpDoor:
    """A running service; the job is registered with it, and deleted at the end of the context.

    Args:
        url: Of the service, such as `http://127.0.0.1:8765`.
        spec: The job; its id must be a new one.
        token: Bearer token, if the service wants one.

    Raises:
        SimulationError: The service cannot be reached, or refuses.
    """

    def __init__(self, url: str, spec: JobSpec, token: str | None = None) -> None:
        self._url = f"{url.rstrip('/')}/api/v1/jobs"
        self._spec = spec
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> Self:
        self._ask("POST", "", self._spec.model_dump(mode="json"))
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("DELETE", f"/{self._job}?force=true", None)

    def start(self) -> Started:
        """Start a trial."""
        start = TrialStart.model_validate(self._ask("POST", f"/{self._job}/trials", {}))
        bound = math.inf if start.cost_bound is None else start.cost_bound
        return Started(start.trial_number, Choice(start.batch_size, start.why), bound)

    def report(self, started: Started, report: Report) -> Decision:
        """Report an epoch."""
        path = f"/{self._job}/trials/{started.number}/reports"
        return Decision.model_validate(self._ask("POST", path, report.model_dump()))

    @property
    def _job(self) -> str:
        return urllib.parse.quote(self._spec.job_id, safe="")

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise SimulationError(
                f"{method} {request.full_url}: {error.code} {error.read().decode(errors='replace')}"
            ) from error
        except (OSError, ValueError) as error:
            raise SimulationError(
                f"{method} {request.full_url}: {error}; is the service running there?"
            ) from error
        return json.loads(text) if text else None
