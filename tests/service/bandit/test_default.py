"""The baseline: the default batch size, always."""

from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest
from service.jobs import HARDWARE, next_choice, observation, spec
from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, State

POLICY, JOB = DefaultPolicy(), spec(policy="default")
CHOICE = Choice(32, "explore")


def after(*ends: tuple[str, float]) -> State:
    state = POLICY.initial_state(JOB)
    for result, cost in ends:
        state = POLICY.begin(JOB, state, CHOICE, HARDWARE)
        state = POLICY.observe(JOB, state, observation(CHOICE, result, cost))
    return state


def test_its_mean_cost_is_shown_with_its_standard_error() -> None:
    costs = [100.0, 130.0, 90.0]
    arms = POLICY.describe(JOB, after(*(("converged", cost) for cost in costs)), HARDWARE)
    (default,) = [arm for arm in arms if arm.pulls]
    assert (default.batch_size, default.pulls, default.status) == (32, 3, "alive")
    assert default.mean == pytest.approx(mean(costs))
    assert default.spread == pytest.approx(stdev(costs) / math.sqrt(3))


@pytest.mark.parametrize(
    ("failures", "given_up"),
    [
        (["not_converged"], False),
        (["not_converged", "diverged"], True),
        (["out_of_memory"], True),
    ],
)
def test_a_default_that_never_converges_is_given_up(failures: list[str], given_up: bool) -> None:
    ends = [(result, 1.0) for result in failures]
    state = after(*ends)
    arms = POLICY.describe(JOB, state, HARDWARE)
    assert all(arm.status != "alive" for arm in arms) is given_up
    if given_up:
        with pytest.raises(NoBatchSizeLeft):
            next_choice(POLICY, JOB, state, np.random.default_rng(0))
    saved = after(("converged", 1.0), *ends * 10)
    assert sum(arm.pulls for arm in POLICY.describe(JOB, saved, HARDWARE)) == 1 + 10 * len(ends)
    assert next_choice(POLICY, JOB, saved, np.random.default_rng(0)) == CHOICE
