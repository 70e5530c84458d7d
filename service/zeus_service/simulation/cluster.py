"""A recurring job whose runs overlap, as in a cluster."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

from zeus_service.policies import Choice
from zeus_service.simulation.job import SimulatedJob
from zeus_service.simulation.machine import Machine, Trial
from zeus_service.simulation.replay import MAX_TRIES
from zeus_service.simulation.submissions import Submission
from zeus_service.simulation.workload import Drift, Workload
from zeus_service.spec import JobSpec


@dataclass(frozen=True, order=True)
class _Running:
    """A run in flight. Runs are ordered by their end, those that end at once by their start."""

    end_s: float
    number: int
    tries: int = field(compare=False)
    submission: Submission = field(compare=False)
    choice: Choice = field(compare=False)
    trial: Trial = field(compare=False)


def replay_overlapping(
    workload: Workload | Drift, spec: JobSpec, submissions: tuple[Submission, ...]
) -> list[Trial]:
    """Run every submission when it starts; the job learns of each run when it ends.

    A run takes as long as its submission did, and so does its retry, which starts when it fails.
    The job is told what the run costs; what is reported here is that times the submission's ratio.

    Args:
        workload: What is trained.
        spec: The job, its policy and its knobs; its seed is also that of the runs' luck.
        submissions: Ordered by their start; one is one recurrence.

    Returns:
        All trials, in the order in which they ended.

    Raises:
        SimulationError: Every batch size has failed.

    Source: `simulate_one_alibaba_group` of the simulator published with Zeus (NSDI 2023); there, a
    run that starts while any other is in flight gets the best batch size, here it is the policy
    that says what it gets.
    """
    job, machine = SimulatedJob(spec), Machine(spec)
    running: list[_Running] = []
    ended: list[Trial] = []

    def start(recurrence: int, submission: Submission, start_s: float, tries: int) -> None:
        started = job.start()
        trial = machine.run(workload.at(recurrence), started, recurrence)
        end_s = start_s + submission.end_s - submission.start_s
        heapq.heappush(
            running, _Running(end_s, trial.number, tries, submission, started.choice, trial)
        )

    def end() -> None:
        run = heapq.heappop(running)
        trial, ratio = run.trial, run.submission.runtime_ratio
        job.end(trial.number, run.choice, trial.verdict, trial.cost)
        ended.append(
            replace(
                trial,
                time_s=trial.time_s * ratio,
                energy_j=trial.energy_j * ratio,
                cost=trial.cost * ratio,
            )
        )
        if trial.verdict != "converged" and run.tries < MAX_TRIES:
            start(trial.recurrence, run.submission, run.end_s, run.tries + 1)

    for recurrence, submission in enumerate(submissions):
        while running and running[0].end_s <= submission.start_s:
            end()
        start(recurrence, submission, submission.start_s, 1)
    while running:
        end()
    return ended
