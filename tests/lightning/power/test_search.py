"""What each search measures, on loads whose answer is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeus_lightning.power.information import MAX_WINDOWS
from zeus_lightning.power.search import Search, Sweep, make_search, power_limits
from zeus_lightning.power.selectors import (
    PowerPoint,
    Selector,
    SelectorInputs,
    parse_selector,
)

WIDE = power_limits(200, 700, 25)
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
    name: str,
    limits_w: Sequence[int],
    selector: Selector | str,
    load: Callable[[int], PowerPoint] = valley,
    gpus: int = 1,
    windows: float = 500,
) -> tuple[list[int], int]:
    """The limits measured, in order, and the one chosen."""
    chosen = parse_selector(selector)
    inputs = SelectorInputs(max_power_w=float(gpus * max(limits_w)))

    def takes(limit_w: int) -> PowerPoint:
        one = load(limit_w)
        return PowerPoint(limit_w, gpus * one.energy_j, one.time_s)

    search: Search = make_search(limits_w, chosen, inputs)
    if name == "sweep":
        search = Sweep(tuple(limits_w))
    points: list[PowerPoint] = []
    while (limit_w := search.propose(points, windows - len(points))) is not None:
        points.append(takes(limit_w))
        assert len(points) <= max(MAX_WINDOWS, len(limits_w))
    return [point.limit_w for point in points], chosen.select(search.estimates(points), inputs)


# Whatever it measures


@settings(max_examples=30)
@given(
    limits=limits,
    selector=st.sampled_from(SELECTORS),
    data=st.data(),
)
def test_a_search_asks_for_limits_in_range_and_ends_whatever_is_measured(
    limits: tuple[int, int, int], selector: str, data: st.DataObject
) -> None:
    min_w, width, step_w = limits
    allowed = power_limits(min_w, min_w + width, max(step_w, width // 20))

    def measured(limit_w: int) -> PowerPoint:
        assert limit_w in allowed
        return PowerPoint(limit_w, data.draw(positive), data.draw(positive))

    measured_w, chosen_w = run("information", allowed, selector, measured, windows=20)
    assert chosen_w in measured_w


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_number_of_gpus_does_not_change_what_is_measured(selector: str) -> None:
    one = run("information", WIDE, selector, windows=50)
    assert run("information", WIDE, selector, gpus=8, windows=50) == one


# Each selector


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("selector", SELECTORS)
def test_of_very_few_limits_it_finds_what_the_sweep_finds(count: int, selector: str) -> None:
    few = [300, 400, 500][-count:]
    assert run("information", few, selector)[1] == run("sweep", few, selector)[1]


def test_for_the_lowest_time_only_the_highest_limit_is_measured() -> None:
    assert run("information", WIDE, "time") == ([700], 700)


@given(factor=st.floats(1, 4), seed=st.integers(0, 1000))
def test_max_slowdown_finds_the_sweeps_answer_on_every_falling_time(
    factor: float, seed: int
) -> None:
    rng = random.Random(seed)
    times = sorted((rng.uniform(1, 4) for _ in WIDE), reverse=True)
    by_limit = dict(zip(sorted(WIDE), times, strict=True))

    def load(limit_w: int) -> PowerPoint:
        return PowerPoint(limit_w, 1.0, by_limit[limit_w])

    selector = f"max-slowdown:{factor}"
    measured, chosen = run("information", WIDE, selector, load)
    assert chosen == run("sweep", WIDE, selector, load=load)[1]
    assert len(measured) <= 6
