"""What each search measures, on loads whose answer is known, made up and recorded."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.power import Outcome, recorded_loads, search_load, synthetic_loads
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.search import SearchName, make_search, power_limits
from zeus_lightning.power.selectors import (
    PowerPoint,
    Selector,
    SelectorInputs,
    ZeusCost,
    parse_selector,
)

WIDE = power_limits(200, 700, 25)
NARROW = power_limits(100, 250, 25)
SELECTORS = ["energy", "time", "zeus-cost", "max-slowdown:1.1"]

limits = st.tuples(st.integers(50, 400), st.integers(1, 500), st.integers(1, 100)).filter(
    lambda them: them[2] <= them[1]
)
positive = st.floats(0.01, 1e4)


def valley(limit_w: int) -> PowerPoint:
    """An H200-like load without noise that uses up to 480 W; its cost is lowest at 325 W."""
    power_w = min(limit_w, 480)
    time_s = 0.6 + 0.4 * (400 / (power_w - 80)) ** 0.5
    return PowerPoint(limit_w, power_w * time_s, time_s)


def run(
    name: SearchName,
    limits_w: Sequence[int],
    selector: Selector | str,
    start_w: int | None = None,
    load: Callable[[int], PowerPoint] = valley,
    gpus: int = 1,
) -> tuple[list[int], int]:
    """The limits measured, in order, and the one chosen."""
    chosen = parse_selector(selector)
    inputs = SelectorInputs(max_power_w=float(gpus * max(limits_w)))
    search = make_search(name, limits_w, chosen, inputs, start_w)
    points: list[PowerPoint] = []
    while (limit := search(points)) is not None:
        one = load(limit)
        points.append(PowerPoint(limit, gpus * one.energy_j, one.time_s))
        assert len(points) <= len(limits_w)
    return [point.limit_w for point in points], chosen.select(points, inputs)


# The limits


def test_limits_go_from_the_highest_down_in_steps_and_stop_above_the_minimum() -> None:
    assert power_limits(100, 250, 25) == (250, 225, 200, 175, 150, 125, 100)
    assert power_limits(100, 260, 50) == (260, 210, 160, 110)
    assert power_limits(100, 250, 150) == (250, 100)


@given(limits=limits)
def test_limits_are_in_range_and_a_step_apart(limits: tuple[int, int, int]) -> None:
    min_w, width, step_w = limits
    found = power_limits(min_w, min_w + width, step_w)
    assert found[0] == min_w + width
    assert all(above - below == step_w for above, below in itertools.pairwise(found))
    assert min_w <= found[-1] < min_w + step_w


@pytest.mark.parametrize("step_w", [0, -25, 151, 10_000])
def test_a_step_of_zero_or_larger_than_the_range_is_one_clear_error(step_w: int) -> None:
    with pytest.raises(ZeusConfigError, match=f"step_w is {step_w}; .* at most 150.*100 to 250 W"):
        power_limits(100, 250, step_w)


# Sweep


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_sweep_measures_all_limits_downwards_whatever_the_start(selector: str) -> None:
    assert run("sweep", NARROW, selector)[0] == list(NARROW)
    assert run("sweep", NARROW, selector, start_w=150)[0] == list(NARROW)


# Bracket: whatever it measures


@given(
    limits=limits,
    selector=st.sampled_from(SELECTORS),
    start=st.none() | st.integers(1, 1000),
    data=st.data(),
)
def test_bracket_asks_for_limits_in_range_once_and_ends_whatever_is_measured(
    limits: tuple[int, int, int], selector: str, start: int | None, data: st.DataObject
) -> None:
    min_w, width, step_w = limits
    allowed = power_limits(min_w, min_w + width, step_w)
    seen: list[int] = []

    def measured(limit_w: int) -> PowerPoint:
        assert limit_w in allowed
        assert limit_w not in seen
        seen.append(limit_w)
        return PowerPoint(limit_w, data.draw(positive), data.draw(positive))

    run("bracket", allowed, selector, start, measured)
    assert 1 <= len(seen) <= len(allowed)


@given(order=st.permutations(range(4)), selector=st.sampled_from(SELECTORS))
def test_the_next_limit_depends_on_the_points_alone_and_not_on_their_order(
    order: list[int], selector: str
) -> None:
    chosen = parse_selector(selector)
    search = make_search("bracket", WIDE, chosen, SelectorInputs(max_power_w=700.0))
    points = [valley(limit) for limit in (700, 400, 300, 500)]
    assert search([points[place] for place in order]) == search(points)


@pytest.mark.parametrize("selector", SELECTORS)
def test_bracket_goes_on_from_points_measured_before(selector: str) -> None:
    chosen = parse_selector(selector)
    whole, _ = run("bracket", WIDE, selector)
    for count in range(len(whole)):
        search = make_search("bracket", WIDE, chosen, SelectorInputs(max_power_w=700.0))
        assert search([valley(limit) for limit in whole[:count]]) == whole[count]


def test_the_number_of_gpus_does_not_change_what_is_measured() -> None:
    for selector in SELECTORS:
        for start_w in (None, 450):
            one = run("bracket", WIDE, selector, start_w)
            assert run("bracket", WIDE, selector, start_w, gpus=8) == one


@pytest.mark.parametrize("selector", SELECTORS)
def test_bracket_measures_the_highest_limit_first_when_cold(selector: str) -> None:
    assert run("bracket", WIDE, selector)[0][0] == 700


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("selector", [*SELECTORS])
def test_bracket_of_very_few_limits_finds_what_the_sweep_finds(count: int, selector: str) -> None:
    for start_w in (None, 300):
        few = [300, 400, 500][-count:]
        assert run("bracket", few, selector, start_w)[1] == run("sweep", few, selector)[1]


# Bracket: each selector


@pytest.mark.parametrize("selector", ["energy", "zeus-cost"])
@pytest.mark.parametrize("start_w", [None, 325, 375, 425])
def test_without_noise_bracket_finds_the_lowest_cost(selector: str, start_w: int | None) -> None:
    inputs = SelectorInputs(max_power_w=700.0)
    cost = getattr(parse_selector(selector), "cost")  # noqa: B009 - a Selector may have none
    measured, chosen_w = run("bracket", WIDE, selector, start_w)
    best_w = run("sweep", WIDE, selector)[1]
    assert cost(valley(chosen_w), inputs) <= 1.002 * cost(valley(best_w), inputs)
    assert len(measured) <= 6


def test_a_start_at_the_optimum_looks_at_both_sides_and_not_at_the_highest() -> None:
    inputs = SelectorInputs(max_power_w=250.0)
    times = {100: 1.9, 125: 1.4, 150: 1.15, 175: 1.0, 200: 0.96, 225: 0.94, 250: 0.93}
    by_limit = {limit: PowerPoint(limit, 0.9 * limit * time, time) for limit, time in times.items()}
    best = ZeusCost().select(list(by_limit.values()), inputs)
    assert best == 175
    measured, chosen = run("bracket", NARROW, "zeus-cost", best, by_limit.__getitem__)
    assert chosen == best
    assert sorted(measured) == [150, 175, 200]


def test_a_start_far_from_the_optimum_does_not_mislead() -> None:
    for start_w in (200, 700):
        measured, chosen_w = run("bracket", WIDE, "zeus-cost", start_w)
        assert measured[0] == start_w
        assert abs(chosen_w - run("sweep", WIDE, "zeus-cost")[1]) <= 50


def test_a_start_at_a_limit_that_holds_the_load_back_is_left_in_leaps() -> None:
    def hungry(limit_w: int) -> PowerPoint:
        return PowerPoint(limit_w, limit_w * (0.1 + 600 / limit_w), 0.1 + 600 / limit_w)

    inputs = SelectorInputs(max_power_w=700.0)
    measured, chosen_w = run("bracket", WIDE, "zeus-cost", 200, hungry)
    best_w = run("sweep", WIDE, "zeus-cost", load=hungry)[1]
    assert best_w == 700
    assert ZeusCost().cost(hungry(chosen_w), inputs) <= 1.01 * ZeusCost().cost(hungry(700), inputs)
    assert len(measured) <= 6


def test_a_start_that_is_no_limit_of_this_gpu_is_taken_to_the_nearest() -> None:
    assert run("bracket", NARROW, "zeus-cost", 140)[0][0] == 150
    assert run("bracket", NARROW, "zeus-cost", 700)[0][0] == 250
    assert run("bracket", NARROW, "max-slowdown:1.1", 30)[0][:2] == [250, 100]


def test_limits_that_the_load_cannot_use_are_recognized_by_their_power() -> None:
    def light(limit_w: int) -> PowerPoint:
        """180 W at most; the costs above differ by 4 % of noise only, in favour of the highest."""
        power_w, noise = min(limit_w, 180), 1 - 0.04 * (limit_w - 180) / 520
        time_s = (0.5 + 90 / power_w) * (noise if limit_w > 180 else 1.0)
        return PowerPoint(limit_w, power_w * time_s, time_s)

    measured, _ = run("bracket", power_limits(100, 700, 50), "energy", load=light)
    assert min(measured) <= 150
    assert len([limit for limit in measured if limit > 350]) == 1


def test_limits_above_the_one_that_the_load_can_use_are_not_measured() -> None:
    """At 225 W and at 300 W it draws the same: between them nothing is to be found."""
    points = [PowerPoint(300, 20.0, 0.1), PowerPoint(225, 20.0, 0.1), PowerPoint(200, 21.0, 0.12)]
    inputs = SelectorInputs(max_power_w=300)
    search = make_search("bracket", range(100, 325, 25), parse_selector("energy"), inputs)
    assert search(points) is None
    assert search([points[0], points[2]]) == 225


def test_for_the_lowest_time_only_the_highest_limit_is_measured() -> None:
    assert run("bracket", WIDE, "time") == ([700], 700)
    assert run("bracket", WIDE, "time", 300) == ([700], 700)


def rising(limit_w: int) -> PowerPoint:
    return PowerPoint(limit_w, 1.0, 100.0 / limit_w)


@pytest.mark.parametrize("factor", [1.0, 1.03, 1.1, 1.4, 2.0, 3.4, 9.0])
def test_max_slowdown_is_found_by_bisection(factor: float) -> None:
    selector = f"max-slowdown:{factor}"
    measured, chosen = run("bracket", WIDE, selector, load=rising)
    assert chosen == run("sweep", WIDE, selector, load=rising)[1]
    assert measured[0] == 700
    assert len(measured) <= 6


@pytest.mark.parametrize("factor", [1.0, 1.1, 2.0, 9.0])
def test_max_slowdown_confirms_a_start_at_the_answer_with_three_windows(factor: float) -> None:
    selector = f"max-slowdown:{factor}"
    answer = run("sweep", WIDE, selector, load=rising)[1]
    measured, chosen = run("bracket", WIDE, selector, answer, rising)
    assert chosen == answer
    assert len(measured) <= 3


@given(
    factor=st.floats(1, 4),
    start=st.none() | st.sampled_from(WIDE),
    seed=st.integers(0, 1000),
)
def test_max_slowdown_finds_the_sweeps_answer_on_every_falling_time(
    factor: float, start: int | None, seed: int
) -> None:
    rng = random.Random(seed)
    times = sorted((rng.uniform(1, 4) for _ in WIDE), reverse=True)
    by_limit = dict(zip(sorted(WIDE), times, strict=True))

    def load(limit_w: int) -> PowerPoint:
        return PowerPoint(limit_w, 1.0, by_limit[limit_w])

    selector = f"max-slowdown:{factor}"
    measured, chosen = run("bracket", WIDE, selector, start, load)
    assert chosen == run("sweep", WIDE, selector, load=load)[1]
    assert len(measured) <= (6 if start is None else 8)  # a start that misleads costs two


def test_for_a_selector_without_a_cost_every_limit_is_measured() -> None:
    class Middle:
        name = "middle"

        def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
            return sorted(point.limit_w for point in points)[len(points) // 2]

    assert run("bracket", NARROW, Middle()) == (list(NARROW), 175)


def test_a_selector_with_a_cost_of_its_own_is_searched_by_it() -> None:
    class EnergyDelay:
        name = "energy-delay"

        def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
            return point.energy_j * point.time_s

        def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
            return min(points, key=lambda point: self.cost(point, inputs)).limit_w

    measured, chosen = run("bracket", WIDE, EnergyDelay())
    assert len(measured) <= 6
    assert abs(chosen - run("sweep", WIDE, EnergyDelay())[1]) <= 25


# Bracket: how much it measures, and how well it chooses

recorded = pytest.mark.skipif(
    "ZEUS_TRACES" not in os.environ,
    reason="ZEUS_TRACES names no folder with the Zeus paper's summary_power_*.csv",
)


def outcomes_on_recorded_loads(*, warm: bool) -> list[Outcome]:
    loads = recorded_loads(Path(os.environ["ZEUS_TRACES"]))
    assert len(loads) == 62
    return [search_load(load, "bracket", warm=warm) for load in loads if load.start_w is not None]


@recorded
@pytest.mark.parametrize(("warm", "most"), [(False, 0.65), (True, 0.5)])
def test_on_the_recorded_loads_few_windows_choose_nearly_what_the_sweep_does(
    warm: bool, most: float
) -> None:
    outcomes = outcomes_on_recorded_loads(warm=warm)
    assert fmean(outcome.share for outcome in outcomes) <= most
    assert fmean(outcome.regret <= 0.01 for outcome in outcomes) >= 0.95
    assert max(outcome.regret for outcome in outcomes) <= 0.05


@pytest.mark.parametrize("warm", [False, True])
def test_on_a_wide_range_a_third_of_the_windows_chooses_as_well_as_the_noisy_sweep(
    warm: bool,
) -> None:
    loads = list(synthetic_loads(WIDE, count=500, noise=0.02, seed=7))
    bracket = [search_load(load, "bracket", warm=warm) for load in loads]
    sweep = [search_load(load, "sweep", warm=False) for load in loads]
    assert max(outcome.share for outcome in bracket) <= 0.4
    assert fmean(o.regret for o in bracket) <= fmean(o.regret for o in sweep) + 0.002
    assert fmean(o.regret <= 0.03 for o in bracket) >= 0.95


@pytest.mark.parametrize("warm", [False, True])
def test_on_a_narrow_range_made_up_loads_do_as_well_as_recorded_ones(warm: bool) -> None:
    loads = list(synthetic_loads(NARROW, count=500, noise=0.02, seed=7))
    bracket = [search_load(load, "bracket", warm=warm) for load in loads]
    assert fmean(outcome.share for outcome in bracket) <= (0.5 if warm else 0.65)
    assert fmean(o.regret <= 0.03 for o in bracket) >= 0.95
