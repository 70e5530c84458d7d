"""The search with a model of GPUs: how long it goes on, and what it does not take on trust."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.power import disturb, made_up_loads, recorded_loads, search_load
from zeus_lightning.power.information import MAX_WINDOWS, Information
from zeus_lightning.power.search import power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost

LIMITS = tuple(sorted(power_limits(100, 250, 25)))
COST = partial(ZeusCost().cost, inputs=SelectorInputs(max_power_w=250.0))
SEARCH = Information(LIMITS, COST)


def load(limit_w: int) -> PowerPoint:
    """It uses up to 220 W; its cost is lowest at 150 W."""
    power_w = min(limit_w, 220)
    time_s = 0.5 + 0.5 * (180 / (power_w - 40)) ** 0.5
    return PowerPoint(limit_w, power_w * time_s, time_s)


def slowed(point: PowerPoint, factor: float) -> PowerPoint:
    """The same batch at the same power, in another time."""
    return PowerPoint(point.limit_w, factor * point.energy_j, factor * point.time_s)


def measure(windows_left: float, takes: Callable[[int, int], PowerPoint]) -> list[PowerPoint]:
    """All windows but the run's first; `takes` has the number of the window and its limit."""
    windows: list[PowerPoint] = []
    while limit_w := SEARCH.propose(windows, windows_left - 1 - len(windows)):
        windows.append(takes(1 + len(windows), limit_w))
    return windows


def choice(windows: Sequence[PowerPoint]) -> int:
    return min(SEARCH.estimates(windows), key=COST).limit_w


def test_a_longer_run_measures_more_and_no_run_measures_for_ever() -> None:
    def takes(number: int, limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), random.Random(number).choice([0.95, 1.05]))

    counts = [len(measure(left, takes)) for left in (3, 40, 1e9)]
    assert counts == [2, 11, MAX_WINDOWS - 1]


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_no_run_of_50_windows_costs_a_tenth_more_because_its_first_was_disturbed(
    eta: float,
) -> None:
    loads = [disturb(one) for one in made_up_loads((100, 250), 20)]
    outcomes = [search_load(one, "information", 50, noise=0.02, eta=eta) for one in loads]
    assert max(outcome.excess for outcome in outcomes) <= 0.1


@pytest.mark.parametrize("warm_after", [1, 2, 4])
def test_the_first_windows_of_a_cold_gpu_mislead_no_choice(warm_after: int) -> None:
    """A cold GPU is 8 % faster: the limits that happen to come first must not win by that."""

    def takes(number: int, limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), 1 - 0.08 * 2.718 ** (-number / warm_after))

    assert COST(load(choice(measure(500, takes)))) <= 1.01 * COST(load(150))


@pytest.mark.parametrize("best_w", LIMITS)
def test_windows_overrule_the_model(best_w: int) -> None:
    """No GPU of the model has one limit that is a third better than its neighbours."""

    def odd(limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), 0.66 if limit_w == best_w else 1.0)

    assert choice([odd(limit_w) for limit_w in LIMITS]) == best_w


# What whole runs cost

recorded = pytest.mark.skipif(
    "ZEUS_TRACES" not in os.environ,
    reason="ZEUS_TRACES names no folder with the Zeus paper's summary_power_*.csv",
)


@recorded
@pytest.mark.parametrize(("windows", "most"), [(50, 0.01), (5000, 0.001)])
def test_on_recorded_loads_a_run_costs_hardly_more_than_at_the_best_limit(
    windows: int, most: float
) -> None:
    loads = recorded_loads(Path(os.environ["ZEUS_TRACES"]))
    assert len(loads) == 62
    outcomes = [search_load(one, "information", windows) for one in loads[::3]]
    assert fmean(outcome.excess for outcome in outcomes) <= most
    if windows >= 500:
        assert max(outcome.excess for outcome in outcomes) <= 0.01


@pytest.mark.parametrize(("noise", "eta"), [(0.005, 1.0), (0.05, 0.5)])
def test_on_made_up_loads_a_run_costs_less_than_with_a_sweep(noise: float, eta: float) -> None:
    loads = list(made_up_loads((100, 250), 12))
    excess = {
        name: fmean(search_load(one, name, 50, noise=noise, eta=eta).excess for one in loads)
        for name in ("information", "sweep")
    }
    assert excess["information"] <= excess["sweep"]
