"""Replays of one recurring job, whose runs may overlap as in a cluster."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zeus_service.bandit.outcomes import Result
from zeus_service.bandit.policy import NoBatchSizeLeft, Observation, always_granted
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.simulation.simulated_run import SimulatedTrial, StartedTrial, TrialRunner
from zeus_service.simulation.workload import Workload

MAX_TRIES = 20
"""Runs of one recurrence, which is given up when all have failed."""

PATIENCE = 5
"""Epochs that a baseline trains on after it has reached the target, if `max_epochs` allows."""


@dataclass(frozen=True)
class Submission:
    """One recurrence of a job, which starts and ends at these times in seconds.

    Args:
        runtime_ratio: How long it takes, in relation to the mean of its dataset.
    """

    start_s: float
    end_s: float
    runtime_ratio: float


class SimulatedJob:
    """A job whose state is in memory; `optimizer` does the same in the database.

    A job that learns its target starts baselines until enough have converged.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._policy = policy_of(spec)
        self._trials = self._baselines = 0
        self.state = self._policy.initial_state(spec)

    def start(self, hardware: Hardware) -> StartedTrial:
        """Start a trial; raise `NoBatchSizeLeft` if the policy has none left to try."""
        number = self._trials + 1
        rng = np.random.default_rng([self._spec.random_seed(), number])
        sizes = self._spec.batch_sizes
        learns, bound = self._baselines < self._spec.baseline_runs, math.inf
        choice = always_granted(self._spec) if learns else None
        if choice is None:
            choice = self._policy.next_batch_size(self._spec, self.state, hardware, rng, sizes)
            bound = self._policy.cost_bound(self._spec, self.state, hardware)
        self._trials = number
        self.state = self._policy.begin(self._spec, self.state, choice, hardware)
        return StartedTrial(number, choice, hardware, bound)

    def end(self, started: StartedTrial, result: Result, cost: float, epochs: int) -> None:
        """End a trial that has spent `cost` joules."""
        self._baselines += started.choice.why == "baseline" and result == "converged"
        observation = Observation(started.choice, result, cost, epochs, started.hardware)
        self.state = self._policy.observe(self._spec, self.state, observation)


class _Running(NamedTuple):
    """A run that has not ended. Runs are ordered by their end, and by their number at a tie."""

    end_s: float
    number: int
    tries: int
    submission: Submission
    started: StartedTrial
    trial: SimulatedTrial


def replay(
    workload: Workload, spec: JobSpec, submissions: int | Sequence[Submission]
) -> list[SimulatedTrial]:
    """Replay a job; its policy observes each run when the run ends, and a failed run is retried.

    A run lasts as long as its submission, and so does each retry. The policy observes the cost of
    the run; the returned trial has the submission's ratio times it.

    Args:
        workload: What is trained.
        spec: The job; its seed also draws the runs.
        submissions: The recurrences, ordered by their start; or their number, if each starts when
            the one before has ended.

    Returns:
        All trials, in the order in which they ended. A recurrence that starts when the policy has
        no batch size left has none.

    Source: `simulate_one_alibaba_group` of the simulator published with Zeus (NSDI 2023); there, a
    run that starts while any other is running gets the best batch size; here the policy chooses.
    """
    if isinstance(submissions, int):
        starts = range(0, submissions * MAX_TRIES, MAX_TRIES)
        submissions = [Submission(start, start + 1, 1.0) for start in starts]
    job, runner = SimulatedJob(spec), TrialRunner(spec)
    running: list[_Running] = []
    ended: list[SimulatedTrial] = []

    def start(recurrence: int, submission: Submission, start_s: float, tries: int) -> None:
        try:
            started = job.start(workload.at(recurrence).hardware)
        except NoBatchSizeLeft:
            return  # a trial that is still running may save the job for later recurrences
        trial = runner.run(workload.at(recurrence), started, recurrence)
        end_s = start_s + submission.end_s - submission.start_s
        run = _Running(end_s, trial.number, tries, submission, started, trial)
        heapq.heappush(running, run)

    def end() -> None:
        run = heapq.heappop(running)
        trial, ratio = run.trial, run.submission.runtime_ratio
        if trial.why == "baseline" and trial.result == "converged":
            ratio *= min(trial.epochs + PATIENCE, spec.max_epochs) / trial.epochs
        job.end(run.started, trial.result, trial.cost, trial.epochs)
        spent = {name: getattr(trial, name) * ratio for name in ("time_s", "energy_j", "cost")}
        ended.append(replace(trial, **spent))
        if trial.result != "converged" and run.tries < MAX_TRIES:
            start(trial.recurrence, run.submission, run.end_s, run.tries + 1)

    for recurrence, submission in enumerate(submissions):
        while running and running[0].end_s <= submission.start_s:
            end()
        start(recurrence, submission, submission.start_s, 1)
    while running:
        end()
    return ended
