"""What runs on one hardware teach about the costs on another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from service.jobs import spec
from zeus_service.bandit import curve
from zeus_service.bandit.cost_model import CostPosterior, cost_posterior
from zeus_service.bandit.policy import State

SIZES = spec().batch_sizes
EPOCHS = {8: 2.3, 16: 2.3, 32: 2.35, 64: 2.6, 128: 3.1}
"""Logarithms."""
EPOCH_COST = {8: 5.6, 16: 5.2, 32: 4.9, 64: 4.7, 128: 4.6}


def curve_of(values: dict[int, float], tries: int = 5) -> State:
    """A curve that was seen with a noise of 1 % between the tries."""
    seen, rng = curve.new(len(SIZES)), np.random.default_rng(0)
    for size, value in values.items():
        for _ in range(tries):
            curve.add(seen, SIZES.index(size), value + rng.normal(0, 0.01))
    return seen


def posterior_there(there: dict[int, float]) -> CostPosterior:
    """The posterior on other hardware, of which each value in `there` was seen once."""
    curves = {"here": curve_of(EPOCH_COST), "there": curve_of(there, tries=1)}
    posterior = cost_posterior(spec(), curve_of(EPOCHS), curves, "there")
    assert posterior
    return posterior


def test_epochs_seen_on_one_hardware_hold_on_another() -> None:
    posterior = posterior_there({32: 0.0})
    assert posterior.epochs.mean == pytest.approx(list(EPOCHS.values()), abs=0.02)
    assert np.sqrt(posterior.epochs.variance).max() < 0.03


def test_one_epoch_fixes_the_height_of_a_curve_whose_shape_is_known_from_elsewhere() -> None:
    posterior = posterior_there({32: EPOCH_COST[32] + math.log(50)})
    there = [value + math.log(50) for value in EPOCH_COST.values()]
    assert posterior.is_measured
    assert posterior.epoch_cost.mean == pytest.approx(there, abs=0.05)
    assert np.sqrt(posterior.epoch_cost.variance).max() < 0.2


def test_one_surprising_epoch_overrules_the_shape_from_elsewhere() -> None:
    as_expected = posterior_there({32: 1.0, 128: 1.0 + EPOCH_COST[128] - EPOCH_COST[32]})
    surprising = posterior_there({32: 1.0, 128: 2.0})
    assert surprising.epoch_cost.mean[4] == pytest.approx(2.0, abs=0.1)
    assert (surprising.epoch_cost.variance[:2] > 9 * as_expected.epoch_cost.variance[:2]).all()


def test_without_an_epoch_there_costs_compare_as_on_the_hardware_with_the_most_runs() -> None:
    rare = curve_of(dict.fromkeys(SIZES, 0.0), tries=1)
    curves = {"rare": rare, "here": curve_of(EPOCH_COST)}
    posterior = cost_posterior(spec(), curve_of(EPOCHS), curves, "there")
    assert posterior
    assert not posterior.is_measured
    costs = [EPOCHS[size] + EPOCH_COST[size] for size in SIZES]
    assert posterior.mean - posterior.mean[0] == pytest.approx(np.array(costs) - costs[0], abs=0.03)


def test_costs_are_unknown_before_a_run_has_converged() -> None:
    none = curve.new(len(SIZES))
    assert cost_posterior(spec(), none, {"here": curve_of(EPOCH_COST)}, "here") is None
    assert cost_posterior(spec(), curve_of(EPOCHS), {"here": none}, "here") is None
