"""Replays of one recurring job whose runs overlap, as in a cluster."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import NamedTuple

from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.simulated_job import SimulatedJob
from zeus_service.simulation.simulated_run import SimulatedTrial, StartedTrial, TrialRunner
from zeus_service.simulation.submissions import Submission
from zeus_service.simulation.workload import Workload
from zeus_service.spec import JobSpec


class _Running(NamedTuple):
    """A run that has not ended. Runs are ordered by their end, and by their number at a tie."""

    end_s: float
    number: int
    tries: int
    submission: Submission
    started: StartedTrial
    trial: SimulatedTrial


def replay_overlapping(
    workload: Workload, spec: JobSpec, submissions: tuple[Submission, ...]
) -> list[SimulatedTrial]:
    """Replay a job; its policy observes each run when the run ends.

    A run lasts as long as its submission did, and so does its retry, which starts when it fails.
    The policy observes the cost of the run; the returned trial has the submission's ratio times it.

    Args:
        workload: What is trained.
        spec: The job; its seed also draws the runs.
        submissions: One for each recurrence, ordered by their start.

    Returns:
        All trials, in the order in which they ended.

    Raises:
        SimulationError: Every batch size has failed.

    Source: `simulate_one_alibaba_group` of the simulator published with Zeus (NSDI 2023); there, a
    run that starts while any other is running gets the best batch size; here the policy chooses.
    """
    job, runner = SimulatedJob(spec), TrialRunner(spec)
    running: list[_Running] = []
    ended: list[SimulatedTrial] = []

    def start(recurrence: int, submission: Submission, start_s: float, tries: int) -> None:
        started = job.start()
        trial = runner.run(workload.at(recurrence), started, recurrence)
        end_s = start_s + submission.end_s - submission.start_s
        run = _Running(end_s, trial.number, tries, submission, started, trial)
        heapq.heappush(running, run)

    def end() -> None:
        run = heapq.heappop(running)
        trial, ratio = run.trial, run.submission.runtime_ratio
        job.end(run.started, trial.verdict, trial.cost)
        spent = {name: getattr(trial, name) * ratio for name in ("time_s", "energy_j", "cost")}
        ended.append(replace(trial, **spent))
        if trial.verdict != "converged" and run.tries < MAX_TRIES:
            start(trial.recurrence, run.submission, run.end_s, run.tries + 1)

    for recurrence, submission in enumerate(submissions):
        while running and running[0].end_s <= submission.start_s:
            end()
        start(recurrence, submission, submission.start_s, 1)
    while running:
        end()
    return ended
