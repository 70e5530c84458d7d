"""The search by value of information: how long it goes on, and what it does not take on trust."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.power import (
    disturb,
    made_up_load,
    made_up_loads,
    recorded_loads,
    search_load,
)
from zeus_lightning.power import information
from zeus_lightning.power.information import MAX_WINDOWS, REPEATS, Information, gains
from zeus_lightning.power.posterior import Posterior, infer
from zeus_lightning.power.search import power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost

LIMITS = tuple(sorted(power_limits(100, 250, 25)))
COST = partial(ZeusCost().cost, inputs=SelectorInputs(max_power_w=250.0))
Load = Callable[[int], PowerPoint]


def load(limit_w: int) -> PowerPoint:
    """It uses up to 220 W; its cost is lowest at 150 W."""
    power_w = min(limit_w, 220)
    time_s = 0.5 + 0.5 * (180 / (power_w - 40)) ** 0.5
    return PowerPoint(limit_w, power_w * time_s, time_s)


def slowed(point: PowerPoint, factor: float) -> PowerPoint:
    """The same batch at the same power, in another time."""
    return PowerPoint(point.limit_w, factor * point.energy_j, factor * point.time_s)


def search(similar: Sequence[PowerPoint] = ()) -> Information:
    return Information(LIMITS, COST, similar=tuple(similar))


def measure(
    searching: Information, windows_left: float, takes: Callable[[int, int], PowerPoint]
) -> list[PowerPoint]:
    """All windows; `takes` has the number of the window and its limit."""
    windows: list[PowerPoint] = []
    while proposal := searching.propose(windows, windows_left - len(windows)):
        windows.append(takes(len(windows), proposal.limit_w))
    return windows


def choice(searching: Information, windows: Sequence[PowerPoint]) -> int:
    return min(searching.estimates(windows), key=COST).limit_w


# How long it goes on


@settings(max_examples=25)
@given(
    measured=st.lists(
        st.tuples(st.sampled_from(LIMITS), st.floats(0.97, 1.03)), min_size=1, max_size=8
    ),
    shorter=st.floats(0, 2000),
    longer=st.floats(0, 2000),
)
def test_the_value_of_a_window_never_falls_with_the_length_of_the_run(
    measured: list[tuple[int, float]], shorter: float, longer: float
) -> None:
    windows = [slowed(load(limit_w), factor) for limit_w, factor in measured]
    less, more = (search().propose(windows, left) for left in sorted((shorter, longer)))
    if less is not None:
        assert more is not None
        assert less.saves is not None
        assert more.saves is not None
        assert more.costs is not None
        assert less.costs is not None
        assert more.saves - more.costs >= less.saves - less.costs - 1e-9


def test_a_longer_run_measures_more_and_no_run_measures_for_ever() -> None:
    def takes(number: int, limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), random.Random(number).choice([0.95, 1.05]))

    counts = [len(measure(search(), left, takes)) for left in (3, 30, 300)]
    assert counts[0] <= 4
    assert counts[0] < counts[1] < counts[2]
    assert search().propose([load(250)] * MAX_WINDOWS, 1e9) is None


def test_dozens_of_windows_can_be_worth_it_where_few_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two limits whose costs differ by less than a tenth of the noise."""
    log_cost, covariance = np.array([0.0, 0.002]), np.diag([0.004**2, 0.004**2])
    any_w, noise = np.full(2, 100.0), np.full(2, 0.05**2)
    posterior = Posterior((100, 125), any_w, any_w, log_cost, covariance, noise)
    monkeypatch.setattr(Information, "_posterior", lambda *_: posterior)
    searching = Information((100, 125), COST)
    windows = [PowerPoint(limit_w, 100.0, 1.0) for limit_w in (100, 125)] * 2
    assert searching.propose(windows, 4000) is not None
    monkeypatch.setattr(information, "REPEATS", REPEATS[REPEATS < 10])
    assert searching.propose(windows, 4000) is None


def test_every_window_but_of_the_best_limit_is_expected_to_save_more_than_it_costs() -> None:
    windows: list[PowerPoint] = []
    proposals = []
    while proposal := search().propose(windows, 500):
        posterior = search()._posterior(windows[1:])
        proposals.append((proposal, LIMITS[int(np.argmin(posterior.log_cost))]))
        windows.append(load(proposal.limit_w))
    assert len(proposals) > 3
    for proposal, best_w in proposals:
        assert proposal.saves is not None
        assert proposal.costs is not None
        assert proposal.saves > proposal.costs or proposal.limit_w == best_w


def test_nothing_is_cheaper_than_the_best_limit_if_it_is_the_only_one() -> None:
    only = Information((250,), COST).propose([], 5000)
    assert only is not None
    assert only.saves == pytest.approx(0, abs=1e-6)


def test_the_gain_is_that_of_simulated_windows() -> None:
    """The formula against draws of what a window at each limit would do to the posterior."""
    posterior = infer(LIMITS, [load(250), load(100), load(175)], COST)
    rng = np.random.default_rng(0)
    z = rng.standard_t(8, 200_000) / np.sqrt(8 / 6)
    best = int(np.argmin(posterior.log_cost))
    for place, gain in enumerate(gains(posterior)[0]):
        row = posterior.covariance[place]
        moved = posterior.log_cost[:, None] + np.outer(row, z) / np.sqrt(
            row[place] + posterior.noise[place]
        )
        expected = (moved[best] - moved.min(axis=0)).mean()
        assert gain == pytest.approx(expected, rel=0.05, abs=2e-5)


# What it does not take on trust


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_no_run_of_50_windows_costs_a_tenth_more_because_its_first_was_disturbed(
    eta: float,
) -> None:
    loads = [disturb(one) for one in made_up_loads((100, 250), 20)]
    outcomes = [search_load(one, "information", 50, noise=0.02, eta=eta) for one in loads]
    assert max(outcome.excess for outcome in outcomes) <= 0.1


def test_windows_of_a_limit_that_disagree_show_the_noise_and_it_is_measured_once_more() -> None:
    others = [load(limit_w) for limit_w in LIMITS if limit_w != 150]
    agreeing = [*others, load(150), load(150)]
    disagreeing = [*others, slowed(load(150), 0.96), slowed(load(150), 1.04)]
    noise = [infer(LIMITS, windows, COST).noise.mean() for windows in (agreeing, disagreeing)]
    assert noise[1] > 4 * noise[0]
    after_both = [search().propose(windows, 50) for windows in (agreeing, disagreeing)]
    assert after_both[0] is None or after_both[0].limit_w != 150
    assert after_both[1] is not None
    assert after_both[1].limit_w == 150
    after_third = search().propose([*disagreeing, load(150)], 50)
    assert after_third is None or after_third.limit_w != 150


@pytest.mark.parametrize("warm_after", [1, 2, 4])
def test_the_first_windows_of_a_cold_gpu_are_not_believed_alone(warm_after: int) -> None:
    """A cold GPU is 8 % faster: the limits that happen to come first must not win by that."""

    def takes(number: int, limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), 1 - 0.08 * np.exp(-number / warm_after))

    assert choice(search(), measure(search(), 30, takes)) == 150


def test_the_first_window_moves_the_posterior_less_than_a_later_one() -> None:
    rest = [load(limit_w) for limit_w in LIMITS if limit_w != 150] * 2
    off = slowed(load(150), 0.97)
    expected = [
        infer(LIMITS, windows, COST).point(150).time_s for windows in ([off, *rest], [*rest, off])
    ]
    assert off.time_s < expected[1] < expected[0] < load(150).time_s


@pytest.mark.parametrize("best_w", LIMITS)
def test_the_model_does_not_bind_where_windows_refute_it(best_w: int) -> None:
    """No GPU of the model has one limit that is a third better than its neighbours."""

    def odd(limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), 0.66 if limit_w == best_w else 1.0)

    windows = measure(search(), 5000, lambda _, limit_w: odd(limit_w))
    assert choice(search(), windows) == best_w


def test_a_similar_load_spares_windows_and_one_that_misleads_does_not_bind() -> None:
    def light(limit_w: int) -> PowerPoint:
        power_w = min(limit_w, 90)
        return PowerPoint(limit_w, power_w * 2.0, 2.0)

    right = [slowed(load(limit_w), 1.7) for limit_w in LIMITS]
    wrong = [light(limit_w) for limit_w in LIMITS]
    costs = []  # of the windows, beyond that of the best limit
    for similar in ((), right, wrong):
        costs.append(0.0)
        for length in (20, 50, 100, 200, 500):
            windows = measure(search(similar), length, lambda _, limit_w: load(limit_w))
            costs[-1] += sum(COST(window) / COST(load(150)) - 1 for window in windows)
            assert COST(load(choice(search(similar), windows))) <= 1.003 * COST(load(150))
    alone, informed, _ = costs
    assert informed < alone


def test_a_cost_that_a_window_shares_with_all_limits_is_not_its_value() -> None:
    """The first window tells how long a batch takes, which is no choice between limits."""
    assert gains(infer(LIMITS, [], COST)).max() < 1e-3


@pytest.mark.parametrize("odd_w", LIMITS)
def test_a_long_run_finds_a_limit_that_is_cheaper_than_any_curve_says(odd_w: int) -> None:
    def takes(_: int, limit_w: int) -> PowerPoint:
        return slowed(load(limit_w), 0.93 if limit_w == odd_w else 1.0)

    unusable = [load(limit_w + 2) for limit_w in LIMITS]  # as measured with another step
    for searching in (search(), search(unusable)):
        windows = measure(searching, 5000, takes)
        best_w = min(LIMITS, key=lambda limit_w: COST(takes(0, limit_w)))
        assert choice(searching, windows) == best_w


def test_small_steps_do_not_multiply_surprises() -> None:
    """Of 101 limits, a run of 100 windows would measure 70 if each might be 5 % cheaper."""
    fine = made_up_load(power_limits(200, 700, 5), 0)
    assert len(search_load(fine, "information", 100, noise=0.005, eta=0.0).measured_w) <= 25


def test_a_long_run_measures_again_what_one_window_says_against_the_posterior() -> None:
    """The best of 21 limits is measured first, but its price explained by a GPU that is cold.

    Without surprises of measured limits, 3 of these 8 runs end with a limit that is 2.3 % dearer.
    """
    (cheap,) = made_up_loads((200, 700), 1)
    for number in range(8):
        again = replace(cheap, name=f"{cheap.name}, with noise {number}")
        outcome = search_load(again, "information", 500, noise=0.005, eta=1.0)
        assert outcome.regret < 0.01


# What whole runs cost

recorded = pytest.mark.skipif(
    "ZEUS_TRACES" not in os.environ,
    reason="ZEUS_TRACES names no folder with the Zeus paper's summary_power_*.csv",
)


@recorded
@pytest.mark.parametrize(("windows", "most"), [(50, 0.006), (500, 0.001), (5000, 0.0002)])
def test_on_recorded_loads_a_run_costs_hardly_more_than_at_the_best_limit(
    windows: int, most: float
) -> None:
    loads = recorded_loads(Path(os.environ["ZEUS_TRACES"]))
    assert len(loads) == 62
    outcomes = [search_load(one, "information", windows) for one in loads[::3]]
    assert fmean(outcome.excess for outcome in outcomes) <= most
    if windows >= 500:
        assert max(outcome.excess for outcome in outcomes) <= 0.01


@pytest.mark.parametrize(("noise", "eta"), list(itertools.product([0.005, 0.05], [0.5, 1.0])))
def test_on_made_up_loads_a_run_costs_less_than_with_a_sweep(noise: float, eta: float) -> None:
    loads = list(made_up_loads((100, 250), 12))
    excess = {
        name: fmean(search_load(one, name, 50, noise=noise, eta=eta).excess for one in loads)
        for name in ("information", "sweep")
    }
    assert excess["information"] <= excess["sweep"]
