"""Replays of one recurring job in which the service stops the runs, after a report per epoch.

`replay.py` stops a run before the epoch that would cross the bound. The service cannot: it receives
the first report after the first epoch, and expects the next epoch to cost as much as the last one.
The decisions are made in this process or by a running service, with the same result.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Self

from zeus_service.bandit import stopping
from zeus_service.bandit.policy import Choice
from zeus_service.bandit.spec import JobSpec
from zeus_service.messages import Decision, Report, TrialStart
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.replay import MAX_TRIES, SimulatedJob
from zeus_service.simulation.simulated_run import (
    Run,
    SimulatedTrial,
    StartedTrial,
    TrialRunner,
    time_and_energy,
)
from zeus_service.simulation.workload import Workload


def replay_with_reports(
    workload: Workload, spec: JobSpec, recurrences: int, service: InProcessService | HttpService
) -> list[SimulatedTrial]:
    """Replay a job as `replay.replay` does; the service stops its runs."""
    runner = TrialRunner(spec)

    def run(recurrence: int) -> SimulatedTrial:
        started = service.start()
        setting = workload.at(recurrence).settings[started.choice.batch_size]
        price = setting.price(spec.eta_knob, workload.max_power_w)
        target_epoch, first = runner.draw(started.choice.batch_size, setting.target_epochs)
        for epoch in range(1, spec.max_epochs + 1):
            time_s, energy_j = time_and_energy(price, epoch, profiling=first)
            metric = spec.target_metric if epoch >= target_epoch else spec.target_metric - 1
            measured = {"time_s": time_s, "energy_j": energy_j, "metric": metric}
            decision = service.report(started, Report(sequence=epoch, epoch=epoch, **measured))
            if decision.outcome in ("converged", "early_stopped", "not_converged"):
                ended = Run(decision.outcome, epoch, time_s, energy_j)
                return runner.ended(started, recurrence, price, ended)
        raise SimulationError(
            f"the service did not stop trial {started.number} after its last epoch, "
            f"{spec.max_epochs}"
        )

    trials: list[SimulatedTrial] = []
    for recurrence in range(recurrences):
        for _ in range(MAX_TRIES):
            trials.append(run(recurrence))
            if trials[-1].verdict == "converged":
                break
    return trials


class InProcessService:
    """The service's decisions, made in this process."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._job = SimulatedJob(spec)
        self._cost = 0.0

    def start(self) -> StartedTrial:
        """Start a trial."""
        self._cost = 0.0
        return self._job.start()

    def report(self, started: StartedTrial, report: Report) -> Decision:
        """Decide, and end the trial if it stops."""
        bound = started.cost_bound if math.isfinite(started.cost_bound) else None
        decision = stopping.decide(self._spec, report, previous_cost=self._cost, cost_bound=bound)
        self._cost = decision.cost
        if decision.outcome in ("converged", "early_stopped", "not_converged"):
            self._job.end(started, decision.outcome, decision.cost)
        return decision


class HttpService:
    """A running service. As a context, it registers the job, and deletes it at the end.

    The job's id must be a new one. A service that cannot be reached, or refuses a request, is a
    `SimulationError`.
    """

    def __init__(self, url: str, spec: JobSpec, token: str | None = None) -> None:
        if "@" in url:  # what is before it may be secret
            raise SimulationError(
                "the address of the service has a user or a password; use http://HOST:PORT, and "
                "set ZEUS_BSO_TOKEN"
            )
        self._url = f"{url.rstrip('/')}/api/v1/jobs"
        self._spec = spec
        access = {"Authorization": f"Bearer {token}"} if token else {}
        self._headers = {"Content-Type": "application/json", **access}
        self._job = urllib.parse.quote(spec.job_id, safe="")
        self._generations: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._ask("POST", "", self._spec.model_dump(mode="json"))
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("DELETE", f"/{self._job}?force=true", None)

    def start(self) -> StartedTrial:
        """Start a trial."""
        start = TrialStart.model_validate(self._ask("POST", f"/{self._job}/trials", {}))
        bound = math.inf if start.cost_bound is None else start.cost_bound
        self._generations[start.trial_number] = start.generation
        return StartedTrial(start.trial_number, Choice(start.batch_size, start.why), bound)

    def report(self, started: StartedTrial, report: Report) -> Decision:
        """Report an epoch."""
        generation = self._generations[started.number]
        path = f"/{self._job}/trials/{started.number}/reports?generation={generation}"
        return Decision.model_validate(self._ask("POST", path, report.model_dump()))

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, headers=self._headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
        except (OSError, ValueError) as error:
            reason = f"{error}; is the service running there?"
            if isinstance(error, urllib.error.HTTPError):
                reason = f"{error.code} {error.read().decode(errors='replace')}"
            raise SimulationError(f"{method} {request.full_url}: {reason}") from error
        return json.loads(text) if text else None
