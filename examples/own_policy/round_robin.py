"""A policy of one's own: try each batch size in turn, then take the cheapest.

Install it where the service runs, and name it in the callback:

    pip install ./examples/own_policy
    zeus-service serve

    ZeusBSOCallback(..., policy="round_robin")
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from zeus_service.bandit.per_hardware import PerHardware
from zeus_service.bandit.policy import ArmEstimate, Choice, NoBatchSizeLeft, Observation, State
from zeus_service.bandit.spec import Hardware, JobSpec

TRIES = 2


class RoundRobinPolicy:
    """`TRIES` runs of each batch size, then the one of the lowest mean cost.

    The object keeps nothing: all that it knows of a job is in the state, which is JSON and never
    changed in place. A batch size that fails is not tried again.
    """

    name = "round_robin"

    def initial_state(self, spec: JobSpec) -> State:
        """For each batch size: runs begun, runs converged, their total cost, and failures."""
        return {
            str(size): {"begun": 0, "converged": 0, "cost": 0.0, "failed": 0}
            for size in spec.batch_sizes
        }

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """The first batch size with a try left, else the cheapest."""
        left = [size for size in usable if not state[str(size)]["failed"]]
        if not left:
            raise NoBatchSizeLeft
        size = min(left, key=lambda size: state[str(size)]["begun"])
        if state[str(size)]["begun"] < TRIES:
            return Choice(size, "explore")
        means = {size: mean for size in left if (mean := _mean(state, size)) is not None}
        best = min(means, key=means.__getitem__, default=None)
        return Choice(best or size, "exploit" if best else "concurrent")

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """Count the run."""
        return _changed(state, choice, begun=1)

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Count its cost or failure; without a result, undo `begin`."""
        choice, result = observation.choice, observation.result
        if result is None:
            return _changed(state, choice, begun=-1)
        if result == "out_of_memory":  # all larger ones fail, too
            for size in spec.batch_sizes:
                if size > choice.batch_size and not state[str(size)]["converged"]:
                    state = _changed(state, Choice(size, "explore"), failed=1)
        if result == "converged":
            return _changed(state, choice, converged=1, cost=observation.cost)
        return _changed(state, choice, failed=1)

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """`beta_knob` times the lowest mean cost."""
        means = [mean for size in spec.batch_sizes if (mean := _mean(state, size)) is not None]
        return spec.beta_knob * min(means) if spec.beta_knob and means else math.inf

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """The one of the lowest mean cost, among those that have not failed."""
        alive = [size for size in spec.batch_sizes if not state[str(size)]["failed"]]
        costs = {size: mean for size in alive if (mean := _mean(state, size)) is not None}
        return min(costs, key=costs.__getitem__, default=None)

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """What `zeus-service show` prints of each batch size."""
        return [
            ArmEstimate(
                size,
                state[str(size)]["converged"] + state[str(size)]["failed"],
                _mean(state, size),
                None,
                "failed" if state[str(size)]["failed"] else "alive",
            )
            for size in spec.batch_sizes
        ]


policy = PerHardware(RoundRobinPolicy())
"""What the distribution's entry point names: a state for each hardware, so that the methods above
need not look at it."""


def _changed(state: State, choice: Choice, **steps: float) -> State:
    arm: dict[str, Any] = state[str(choice.batch_size)]
    return {**state, str(choice.batch_size): {**arm, **{k: arm[k] + v for k, v in steps.items()}}}


def _mean(state: State, size: int) -> float | None:
    arm = state[str(size)]
    return arm["cost"] / arm["converged"] if arm["converged"] else None
