"""The default batch size, always: a baseline to compare the other policies with."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from zeus_service.bandit.policy import (
    ArmEstimate,
    Choice,
    Moments,
    NoBatchSizeLeft,
    Observation,
    State,
)
from zeus_service.bandit.spec import Hardware, JobSpec

_FAILURES = 2


class DefaultPolicy:
    """Always takes the job's default batch size, and measures what it costs.

    No run is stopped early: what it would have cost would stay unknown. A default that has never
    converged is given up after two failures, or when it does not fit into memory; once it has
    converged, it never is. `window_size`, `beta_knob` and the other knobs change nothing.
    """

    name = "default"

    def initial_state(self, spec: JobSpec) -> State:
        """See `Policy`."""
        return {"converged": 0, "mean": 0.0, "m2": 0.0, "failed": 0}

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """See `Policy`."""
        if _is_given_up(state) or spec.default_batch_size not in usable:
            raise NoBatchSizeLeft
        return Choice(spec.default_batch_size, "explore")

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """See `Policy`; a trial that is running makes no difference."""
        return state

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """See `Policy`."""
        result = observation.result
        if result is None or observation.choice.batch_size != spec.default_batch_size:
            return state
        if result != "converged":
            failure = "out_of_memory" if result == "out_of_memory" else "failed"
            return {**state, failure: state.get(failure, 0) + 1}
        costs = Moments(state["converged"], state["mean"], state["m2"]).add(observation.cost)
        return {**state, "converged": costs.count, "mean": costs.mean, "m2": costs.m2}

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """See `Policy`; there is none."""
        return math.inf

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """See `Policy`."""
        return spec.default_batch_size if state["converged"] else None

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """See `Policy`; `spread` is the standard error of the mean cost."""
        count = state["converged"]
        spread = math.sqrt(state["m2"] / (count - 1) / count) if count > 1 else None
        default = ArmEstimate(
            spec.default_batch_size,
            count + state["failed"] + state.get("out_of_memory", 0),
            state["mean"] if count else None,
            spread,
            "failed" if _is_given_up(state) else "alive",
        )
        return [
            default if size == spec.default_batch_size else ArmEstimate(size, 0, None, None, "idle")
            for size in spec.batch_sizes
        ]


def _is_given_up(state: State) -> bool:
    failed = state["failed"] >= _FAILURES or "out_of_memory" in state
    return failed and not state["converged"]
