"""Trials whose devices cannot divide every batch size of their job."""

from __future__ import annotations

import numpy as np
import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.jobs import HARDWARE, LEARNING, observation, register, spec
from zeus_service import counters, optimizer
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, Policy, State
from zeus_service.errors import ExhaustedJob

learning_policies = pytest.mark.parametrize("policy", LEARNING.values(), ids=LEARNING)


@learning_policies
def test_usable_batch_sizes_that_all_fail_are_an_error_and_not_a_loop(policy: Policy) -> None:
    job = spec(batch_sizes=[32, 48, 64, 96], default_batch_size=64)
    state, rng = policy.initial_state(job), np.random.default_rng(0)

    def fail_30_trials(state: State) -> None:
        for _ in range(30):
            choice = policy.next_batch_size(job, state, HARDWARE, rng, [48, 96])
            state = policy.begin(job, state, choice, HARDWARE)
            state = policy.observe(job, state, observation(choice, "not_converged", 1.0))

    with pytest.raises(NoBatchSizeLeft):
        fail_30_trials(state)
    assert policy.next_batch_size(job, state, HARDWARE, rng, [64]).batch_size == 64


@on_sqlite
def test_a_default_that_cannot_be_used_does_not_count_as_exhaustion(app: Flask) -> None:
    register(policy="default", batch_sizes=[32, 48], default_batch_size=32)
    before = counters.exhausted_starts._value.get()
    with pytest.raises(ExhaustedJob, match="divisible by 48 left to try: 1 was not tried"):
        optimizer.start_trial("job", multiple_of=48)
    assert counters.exhausted_starts._value.get() == before
    assert optimizer.start_trial("job")[1].batch_size == 32


@learning_policies
def test_a_batch_size_that_is_taken_because_the_best_is_not_usable_is_no_exploitation(
    policy: Policy,
) -> None:
    job = spec()
    state = policy.initial_state(job)
    for _ in range(4):
        for size, cost in ((32, 1000.0), (16, 2000.0), (64, 2000.0), (128, 4000.0), (8, 4000.0)):
            choice = Choice(size, "explore")
            state = policy.begin(job, state, choice, HARDWARE)
            state = policy.observe(job, state, observation(choice, "converged", cost))
    choice = policy.next_batch_size(job, state, HARDWARE, np.random.default_rng(1), [128])
    assert choice.batch_size == 128
    assert choice.why == ("explore" if policy.name == "information_directed" else "exploit")
