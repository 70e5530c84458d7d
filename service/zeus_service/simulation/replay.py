"""One recurring job, one recurrence after the other."""

from __future__ import annotations

from zeus_service.simulation.job import SimulatedJob
from zeus_service.simulation.machine import Machine, Trial
from zeus_service.simulation.workload import Drift, Workload
from zeus_service.spec import JobSpec

MAX_TRIES = 20
"""Runs of one recurrence; when all have failed, it is given up."""


def replay(workload: Workload | Drift, spec: JobSpec, recurrences: int) -> list[Trial]:
    """Let a job recur; a failed run is tried again at once.

    Args:
        workload: What is trained.
        spec: The job, its policy and its knobs; its seed is also that of the runs' luck.
        recurrences: How often it recurs.

    Returns:
        All trials, in order.

    Raises:
        SimulationError: Every batch size has failed.
    """
    job, machine = SimulatedJob(spec), Machine(spec)
    trials: list[Trial] = []
    for recurrence in range(recurrences):
        for _ in range(MAX_TRIES):
            started = job.start()
            trial = machine.run(workload.at(recurrence), started, recurrence)
            job.end(trial.number, started.choice, trial.verdict, trial.cost)
            trials.append(trial)
            if trial.verdict == "converged":
                break
    return trials
