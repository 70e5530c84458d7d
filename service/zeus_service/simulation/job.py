"""A job as the service knows it, without the service."""

from __future__ import annotations

import numpy as np

from zeus_service import history
from zeus_service.policies import Choice, NoBatchSizeLeft, Verdict, policy_of
from zeus_service.simulation.errors import SimulationError
from zeus_service.simulation.machine import Started
from zeus_service.spec import JobSpec


class SimulatedJob:
    """A job's state in memory, advanced as `zeus_service.optimizer` does it in the database."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._seed = spec.random_seed()
        self._policy = policy_of(spec)
        self._trials = 0
        self.state = self._policy.initial_state(spec)

    def start(self) -> Started:
        """Start a trial.

        Raises:
            SimulationError: Every batch size has failed.
        """
        number = self._trials + 1
        rng = np.random.default_rng([self._seed, number])
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
        self._apply(history.Event("started", number, choice))
        return Started(number, choice, bound)

    def end(self, number: int, choice: Choice, verdict: Verdict, cost: float) -> None:
        """End a trial that has spent `cost` joules."""
        self._apply(history.Event("ended", number, choice, verdict, cost))

    def _apply(self, event: history.Event) -> None:
        self.state = history.apply(self._spec, self.state, event)
