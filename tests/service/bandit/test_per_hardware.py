"""With a policy that looks at one hardware only, a job on two kinds is two jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from service.bandit.test_contract import moves, specs
from service.jobs import HARDWARE, OTHER, next_choice, observation
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, Policy, State
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import Hardware, JobSpec


def shown(policy: Policy, job: JobSpec, state: State, hardware: Hardware) -> tuple[Any, ...]:
    """All that a policy says of a job on some hardware."""
    here = job, state, hardware
    return policy.cost_bound(*here), policy.best_batch_size(*here), policy.describe(*here)


@pytest.mark.parametrize("name", ["zeus", "default"])
@given(job=specs, moves=moves)
@settings(max_examples=50, deadline=None)
def test_two_kinds_of_hardware_in_turn_are_as_two_jobs(
    name: str, job: JobSpec, moves: list[Any]
) -> None:
    policy = POLICIES[name]
    both = policy.initial_state(job)
    alone = {hardware: policy.initial_state(job) for hardware in (HARDWARE, OTHER)}
    running: list[tuple[Choice, Hardware]] = []
    for number, (move, which, result, cost, hardware) in enumerate(moves):
        if move == "end" and running:
            choice, hardware = running.pop(which % len(running))
            ended = observation(choice, result, cost, hardware)
            both = policy.observe(job, both, ended)
            alone[hardware] = policy.observe(job, alone[hardware], ended)
        elif move == "start":
            try:
                rngs = [np.random.default_rng(number) for _ in range(2)]
                choice = next_choice(policy, job, alone[hardware], rngs[0], hardware)
            except NoBatchSizeLeft:
                continue
            assert next_choice(policy, job, both, rngs[1], hardware) == choice
            both = policy.begin(job, both, choice, hardware)
            alone[hardware] = policy.begin(job, alone[hardware], choice, hardware)
            running.append((choice, hardware))
    for hardware, state in alone.items():
        assert shown(policy, job, both, hardware) == shown(policy, job, state, hardware)
