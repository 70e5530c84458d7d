"""What the policies of the service can do beyond the contract, which any policy keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from service.jobs import HARDWARE, next_choice, observation, spec
from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.policy import Policy
from zeus_service.bandit.zeus import ZeusPolicy

OWN = (ZeusPolicy(), InformationDirectedPolicy(), DefaultPolicy())

learning_policies = pytest.mark.parametrize("policy", OWN[:2], ids=lambda policy: policy.name)
policies = pytest.mark.parametrize("policy", OWN, ids=lambda policy: policy.name)


@learning_policies
@pytest.mark.parametrize(("default", "scale"), [(8, 1e-6), (128, 1e9)])
def test_the_cheapest_batch_size_is_found(policy: Policy, default: int, scale: float) -> None:
    job = spec(default_batch_size=default)
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        state = policy.initial_state(job)
        for _ in range(60):
            choice = next_choice(policy, job, state, rng)
            state = policy.begin(job, state, choice, HARDWARE)
            cost = scale * 1000 * (1 + 0.3 * abs(math.log2(choice.batch_size / 16)))
            cost *= rng.normal(1, 0.03)
            state = policy.observe(job, state, observation(choice, "converged", cost))
        found.append(policy.best_batch_size(job, state, HARDWARE))
    assert found == [16] * 10


@policies
def test_one_unlucky_divergence_does_not_ban_the_best_batch_size(policy: Policy) -> None:
    job, rng = spec(), np.random.default_rng(0)
    state, last = policy.initial_state(job), []
    for number in range(100):
        choice = next_choice(policy, job, state, rng)
        cost = 1000 * (1 + 0.5 * abs(math.log2(choice.batch_size / 32))) * rng.normal(1, 0.03)
        result = "diverged" if number == 60 else "converged"
        state = policy.begin(job, state, choice, HARDWARE)
        state = policy.observe(job, state, observation(choice, result, cost))
        last.append(choice.batch_size)
    assert last[60] == 32
    assert last[61:].count(32) > 30


def test_with_a_window_a_job_that_became_slower_is_not_stopped_for_ever() -> None:
    policy, job, rng = ZeusPolicy(), spec(window_size=5), np.random.default_rng(0)
    state, stops = policy.initial_state(job), []
    for number in range(200):
        choice = next_choice(policy, job, state, rng)
        slower = 1 if number < 60 else 3
        cost = slower * 1000 * (1 + 0.5 * abs(math.log2(choice.batch_size / 32)))
        cost *= rng.normal(1, 0.03)
        bound = policy.cost_bound(job, state, HARDWARE)
        stopped = number >= 10 and cost > bound
        state = policy.begin(job, state, choice, HARDWARE)
        result = "early_stopped" if stopped else "converged"
        state = policy.observe(job, state, observation(choice, result, min(cost, bound)))
        stops.append(stopped)
    assert sum(stops[160:]) < 10
