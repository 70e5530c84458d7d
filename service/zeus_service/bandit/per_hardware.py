"""Policies that compare costs on one kind of hardware only: a state for each."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from zeus_service.bandit.policy import ArmEstimate, Choice, Observation, Policy, State
from zeus_service.bandit.spec import Hardware, JobSpec


class PerHardware:
    """Keeps a state of another policy for each hardware; none learns from the others.

    Args:
        policy: The other policy, whose methods can ignore the hardware.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name

    def initial_state(self, spec: JobSpec) -> State:
        """See `Policy`."""
        return {"hardware": {}}

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """See `Policy`."""
        own = self._own(spec, state, hardware)
        return self._policy.next_batch_size(spec, own, hardware, rng, usable)

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """See `Policy`."""
        own = self._own(spec, state, hardware)
        return self._with_own(
            spec, state, hardware, self._policy.begin(spec, own, choice, hardware)
        )

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """See `Policy`."""
        hardware = observation.hardware
        own = self._own(spec, state, hardware)
        return self._with_own(spec, state, hardware, self._policy.observe(spec, own, observation))

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """See `Policy`."""
        return self._policy.cost_bound(spec, self._own(spec, state, hardware), hardware)

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """See `Policy`."""
        return self._policy.best_batch_size(spec, self._own(spec, state, hardware), hardware)

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """See `Policy`."""
        return self._policy.describe(spec, self._own(spec, state, hardware), hardware)

    def _own(self, spec: JobSpec, state: State, hardware: Hardware) -> State:
        own: State = state["hardware"].get(hardware.key) or self._policy.initial_state(spec)
        return own

    def _with_own(self, spec: JobSpec, state: State, hardware: Hardware, own: State) -> State:
        all_own = {**state["hardware"], hardware.key: own}
        if own == self._policy.initial_state(spec):
            del all_own[hardware.key]
        return {**state, "hardware": all_own}
