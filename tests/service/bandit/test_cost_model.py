"""What runs on one hardware teach about the costs on another."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from service.jobs import HARDWARE, spec
from zeus_service.bandit.cost_model import (
    CostPosterior,
    add_run,
    cost_posterior,
    epoch_cost_posterior,
    new_curve,
    without_outlier,
)
from zeus_service.bandit.policy import State

SIZES = spec().batch_sizes
HERE, THERE, RARE = (replace(HARDWARE, device_model=name).key for name in ("A100", "H100", "P100"))
EPOCHS = {8: 2.3, 16: 2.3, 32: 2.35, 64: 2.6, 128: 3.1}
"""Logarithms."""
EPOCH_COST = {8: 5.6, 16: 5.2, 32: 4.9, 64: 4.7, 128: 4.6}


def curve_of(values: dict[int, float], tries: int = 5) -> State:
    """A curve that was seen with a noise of 1 % between the tries."""
    seen, rng = new_curve(len(SIZES)), np.random.default_rng(0)
    for size, value in values.items():
        for _ in range(tries):
            add_run(seen, SIZES.index(size), value + rng.normal(0, 0.01))
    return seen


def posterior_there(there: dict[int, float]) -> CostPosterior:
    """The posterior on other hardware, of which each value in `there` was seen once."""
    curves = {HERE: curve_of(EPOCH_COST), THERE: curve_of(there, tries=1)}
    posterior = cost_posterior(spec(), curve_of(EPOCHS), curves, THERE)
    assert posterior
    return posterior


def test_one_surprising_epoch_overrules_the_shape_from_elsewhere() -> None:
    as_expected = posterior_there({32: 1.0, 128: 1.0 + EPOCH_COST[128] - EPOCH_COST[32]})
    surprising = posterior_there({32: 1.0, 128: 2.0})
    assert surprising.epoch_cost.mean[4] == pytest.approx(2.0, abs=0.1)
    assert (surprising.epoch_cost.variance[:2] > 9 * as_expected.epoch_cost.variance[:2]).all()


def test_without_an_epoch_there_costs_compare_as_on_the_hardware_with_the_most_runs() -> None:
    rare = curve_of(dict.fromkeys(SIZES, 0.0), tries=1)
    curves = {RARE: rare, HERE: curve_of(EPOCH_COST)}
    posterior = cost_posterior(spec(), curve_of(EPOCHS), curves, THERE)
    assert posterior
    assert not posterior.is_measured
    costs = [EPOCHS[size] + EPOCH_COST[size] for size in SIZES]
    assert posterior.mean - posterior.mean[0] == pytest.approx(np.array(costs) - costs[0], abs=0.03)


@pytest.mark.parametrize("devices", [1, 4])
def test_on_more_or_fewer_of_the_same_devices_the_curve_goes_with_the_batch_of_each(
    devices: int,
) -> None:
    """On 2 devices, each size was seen; on twice as many, half of it is each device's batch."""
    two, other = (replace(HARDWARE, num_devices=number).key for number in (2, devices))
    cost = dict(zip(SIZES, (8.0, 7.0, 6.0, 5.5, 5.4), strict=True))
    found = epoch_cost_posterior(spec(), {two: curve_of(cost)}, other)
    assert found
    shift = int(math.log2(devices / 2))
    expected = [cost.get(int(size / 2**shift)) for size in SIZES]
    seen = [(mean, there) for mean, there in zip(found.mean, expected, strict=True) if there]
    assert [mean for mean, _ in seen] == pytest.approx([there for _, there in seen], abs=0.1)
    assert len(seen) == 4


def test_a_single_run_at_the_edge_may_take_far_longer() -> None:
    """The curve may be steep there, so this is evidence like any other."""
    epochs = curve_of({8: 2.3, 16: 2.35}, tries=1)
    add_run(epochs, SIZES.index(128), 2.3 + math.log(5))
    assert without_outlier(spec(), epochs) is epochs


@pytest.mark.parametrize(("times_as_long", "left_out"), [(1.8, False), (2, True)])
def test_a_single_run_between_others_is_left_out_if_it_took_twice_as_long(
    times_as_long: float, left_out: bool
) -> None:
    epochs = curve_of({8: 2.3, 16: 2.3, 64: 2.3})
    add_run(epochs, SIZES.index(32), 2.3 + math.log(times_as_long))
    assert (without_outlier(spec(), epochs) is not epochs) is left_out
