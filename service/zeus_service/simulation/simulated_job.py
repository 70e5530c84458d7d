"""A job whose state is in memory, and advanced as `optimizer` does it in the database."""

from __future__ import annotations

import numpy as np

from zeus_service.outcomes import Verdict
from zeus_service.policies import NoBatchSizeLeft, Observation, policy_of
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.simulated_run import StartedTrial
from zeus_service.spec import JobSpec


class SimulatedJob:
    """A job that is simulated, with the same random numbers as in the service."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._policy = policy_of(spec)
        self._trials = 0
        self.state = self._policy.initial_state(spec)

    def start(self) -> StartedTrial:
        """Start a trial.

        Raises:
            SimulationError: Every batch size has failed.
        """
        number = self._trials + 1
        rng = np.random.default_rng([self._spec.random_seed(), number])
        try:
            choice = self._policy.next_batch_size(self._spec, self.state, rng)
        except NoBatchSizeLeft:
            raise SimulationError(
                f"{self._spec.job_id}: after {self._trials} trials every batch size of "
                f"{self._spec.batch_sizes} has failed; allow more epochs or a larger beta, or take "
                "a target that is reached"
            ) from None
        self._trials = number
        bound = self._policy.cost_bound(self._spec, self.state)
        self.state = self._policy.begin(self._spec, self.state, choice)
        return StartedTrial(number, choice, bound)

    def end(self, started: StartedTrial, verdict: Verdict, cost: float) -> None:
        """End a trial that has spent `cost` joules."""
        observation = Observation(started.choice, verdict, cost)
        self.state = self._policy.observe(self._spec, self.state, observation)
