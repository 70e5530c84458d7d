"""What is expected of the next trial."""

from __future__ import annotations

import math

import numpy as np
import pytest
from service.jobs import HARDWARE, spec
from zeus_service.bandit import curve
from zeus_service.bandit.curve_model import Floats
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.outlook import Outlook, infer_costs, information_gain, new_hardware
from zeus_service.bandit.policy import State

policy = InformationDirectedPolicy()
NONE_RUNNING = np.zeros(2, int)


def converged(epochs: dict[int, int], joules: float = 10.0, tries: int = 6) -> State:
    """The state after runs of these epochs, each of which cost `joules` here."""
    job = spec()
    state = policy.initial_state(job)
    own = state["hardware"][HARDWARE.key] = new_hardware(len(job.batch_sizes))
    for size, count in epochs.items():
        index = job.batch_sizes.index(size)
        state["ever_converged"][index] = True
        for _ in range(tries):
            state["converged"][index] += 1
            curve.add(state["epochs"], index, math.log(count))
            curve.add(own["epoch_cost"], index, math.log(joules))
    return state


def cost_now(state: State) -> Floats:
    """The expected cost of a try of each batch size, in costs of the best one."""
    posterior = infer_costs(spec(), state, HARDWARE)
    assert posterior
    draws = posterior.draw(10_000, np.random.default_rng(0))
    return Outlook(spec(), state, HARDWARE, posterior).cost_now(draws)


def test_a_try_costs_what_its_epochs_do() -> None:
    known = cost_now(converged({8: 40, 16: 40, 32: 40, 64: 50, 128: 60}))
    assert known[3:] / known[0] == pytest.approx([50 / 40, 60 / 40], rel=0.05)


def test_a_try_costs_no_more_than_an_early_stop_and_a_retry() -> None:
    """The threshold is twice the cost of the best."""
    known = cost_now(converged({8: 40, 16: 40, 32: 40, 64: 400, 128: 4000}))
    assert known[3:] / known[0] == pytest.approx(3, rel=0.15)


def test_a_try_that_may_fail_costs_a_retry_too() -> None:
    state = converged({8: 40, 16: 40, 32: 40, 64: 40, 128: 40})
    before = cost_now(state)
    state["failed"][4] = 6.0
    assert cost_now(state)[4] > 1.15 * before[4]


def test_a_run_tells_nothing_that_does_not_depend_on_which_is_the_best() -> None:
    rng = np.random.default_rng(0)
    values, is_best = rng.normal(size=(2, 10_000)), rng.random((1, 10_000)) < 0.5
    gain = information_gain(values, np.vstack([is_best, ~is_best]), 0.1, NONE_RUNNING)
    assert gain == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_a_run_tells_less_if_it_is_noisy_and_while_others_will_tell_the_same(
    noise: float,
) -> None:
    """In two draws, as often the one as the other, values are 1 and -1: variance 1."""
    values = np.tile([[1.0, -1.0], [0.0, 0.0]], 50)
    is_best = np.tile([[False, True], [True, False]], 50)
    gains = [
        information_gain(values, is_best, noise, np.array([running, 0])) for running in range(3)
    ]
    explained = [math.log1p((running + 1) / noise) for running in range(3)]
    assert [gain[0] for gain in gains] == pytest.approx(np.diff([0.0, *explained]))
    assert gains[0][1] == 0
