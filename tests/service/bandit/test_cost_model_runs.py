"""What is kept of a job's runs for one curve."""

from __future__ import annotations

import numpy as np
import pytest
from zeus_service.bandit.cost_model import (
    add_run,
    add_stopped_run,
    forget_runs,
    is_known,
    new_curve,
)


def test_the_statistics_are_those_of_all_values_and_the_noise_outlives_a_change() -> None:
    values = np.random.default_rng(0).normal(3, 1, (2, 20))
    state = new_curve(5)
    for index in (0, 1):
        for value in values[index]:
            add_run(state, index, float(value))
    assert state["weight"] == [20, 20, 0, 0, 0]
    assert state["mean_log"][:2] == pytest.approx(values.mean(axis=1))
    noise = {"sum_of_squares": 20 * values.var(axis=1).sum(), "degrees_of_freedom": 38}
    assert {name: state[name] for name in noise} == pytest.approx(noise)
    forget_runs(state)
    assert not is_known(state)
    assert {name: state[name] for name in noise} == pytest.approx(noise)


def test_a_stopped_run_counts_with_its_share() -> None:
    state = new_curve(5)
    add_stopped_run(state, 1, 2.0, 0.75)
    add_stopped_run(state, 1, 4.0, 0.25)
    add_stopped_run(state, 2, 4.0, 0.0)
    assert state["stopped"] == [0, 1, 0, 0, 0]
    assert state["stopped_mean_log"][1] == 2.5
