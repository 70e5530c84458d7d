"""What is kept of a job's runs for one curve."""

from __future__ import annotations

import numpy as np
import pytest
from service.jobs import spec
from zeus_service.bandit import curve
from zeus_service.bandit.cost_model import EPOCHS
from zeus_service.bandit.curve_model import infer
from zeus_service.bandit.policy import State

SIZES = spec().batch_sizes


def seen(*values: tuple[int, float]) -> State:
    """A curve with some values, each with the index of its batch size."""
    state = curve.new(len(SIZES))
    for index, value in values:
        curve.add(state, index, value)
    return state


def surprises(state: State, *values: float) -> list[bool]:
    """Whether each value of one batch size is the one by which the curve has changed."""
    posterior = infer(state, SIZES, EPOCHS)
    return [curve.has_drifted(state, posterior, 2, value) for value in values]


def known(noise: float = 0.05) -> State:
    """A curve that is flat at 1."""
    rng = np.random.default_rng(0)
    return seen(*[(i, float(rng.normal(1, noise))) for i in range(5) for _ in range(10)])


def test_the_statistics_are_those_of_all_values() -> None:
    values = np.random.default_rng(0).normal(3, 1, (2, 20))
    state = seen(*[(i, float(value)) for i in (0, 1) for value in values[i]])
    assert state["weight"] == [20, 20, 0, 0, 0]
    assert state["mean_log"][:2] == pytest.approx(values.mean(axis=1))
    assert state["sum_of_squares"] == pytest.approx(20 * values.var(axis=1).sum())
    assert state["degrees_of_freedom"] == 38


def test_a_stopped_run_counts_with_its_share() -> None:
    state = curve.new(len(SIZES))
    curve.add_stopped(state, 1, 2.0, 0.75)
    curve.add_stopped(state, 1, 4.0, 0.25)
    curve.add_stopped(state, 2, 4.0, 0.0)
    assert state["stopped"] == [0, 1, 0, 0, 0]
    assert state["stopped_mean_log"][1] == 2.5


@pytest.mark.parametrize("factor", [1, -1])
def test_a_curve_changes_by_surprises_in_a_row_in_either_direction(factor: int) -> None:
    assert surprises(known(), 1 + factor * 2) == [False]
    assert surprises(known(), 1 + factor * 2, 1 + factor * 2) == [False, True]
    assert not any(surprises(known(), *[1 + factor * 2, *[1.0] * 5] * 3))


def test_the_ordinary_noise_is_no_change() -> None:
    values = np.random.default_rng(1).normal(1, 0.05, 100)
    assert not any(surprises(known(), *values))


def test_the_noise_outlives_a_change() -> None:
    state = known(noise=0.2)
    noise = state["sum_of_squares"], state["degrees_of_freedom"]
    curve.forget(state)
    assert not curve.is_known(state)
    assert (state["sum_of_squares"], state["degrees_of_freedom"]) == noise
