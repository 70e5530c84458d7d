"""Replays of one recurring job, one recurrence after the other."""

from __future__ import annotations

from zeus_service.simulation.simulated_job import SimulatedJob
from zeus_service.simulation.simulated_run import SimulatedTrial, TrialRunner
from zeus_service.simulation.workload import Workload
from zeus_service.spec import JobSpec

MAX_TRIES = 20
"""Runs of one recurrence, which is given up when all have failed."""


def replay(workload: Workload, spec: JobSpec, recurrences: int) -> list[SimulatedTrial]:
    """Replay a job; a failed run is tried again at once.

    Args:
        workload: What is trained.
        spec: The job; its seed also draws the runs.
        recurrences: How often it recurs.

    Returns:
        All trials, in order.

    Raises:
        SimulationError: Every batch size has failed.
    """
    job, runner = SimulatedJob(spec), TrialRunner(spec)
    trials: list[SimulatedTrial] = []
    for recurrence in range(recurrences):
        for _ in range(MAX_TRIES):
            started = job.start()
            trial = runner.run(workload.at(recurrence), started, recurrence)
            job.end(started, trial.verdict, trial.cost)
            trials.append(trial)
            if trial.verdict == "converged":
                break
    return trials
