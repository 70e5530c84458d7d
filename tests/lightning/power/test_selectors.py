"""Each selector's choice, and what names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeus.optimizer import power_limit as zeus

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.selectors import (
    MaxSlowdown,
    PowerPoint,
    SelectorInputs,
    ZeusCost,
    parse_selector,
)

INPUTS = SelectorInputs(max_power_w=300.0)
positive = st.floats(1e-3, 1e6)
points = st.lists(
    st.builds(PowerPoint, st.integers(50, 1000), positive, positive),
    min_size=1,
    max_size=20,
    unique_by=lambda point: point.limit_w,
)


def test_zeus_costs_own_eta_goes_before_the_runs() -> None:
    selector = ZeusCost(eta_knob=1.0)
    points = [PowerPoint(300, 250.0, 1.0), PowerPoint(150, 175.0, 1.6)]
    assert selector.select(points, SelectorInputs(eta_knob=0.0, max_power_w=300.0)) == 150
    assert selector.name != ZeusCost().name


def test_of_equal_costs_the_lowest_limit_is_chosen() -> None:
    equal = [PowerPoint(limit, 10.0, 1.0) for limit in (250, 150, 200)]
    for selector in (ZeusCost(1), ZeusCost(0), ZeusCost(), MaxSlowdown(1.0)):
        assert selector.select(equal, INPUTS) == 150


@pytest.mark.parametrize(
    "selector",
    ["", "fastest", "Energy", "zeus-cost:0.3", "energy:", "max-slowdown", "max-slowdown:",
     "max-slowdown:fast", "max-slowdown:0.9", "max-slowdown:nan", "max-slowdown:inf", 3, None],
)  # fmt: skip
def test_an_unknown_selector_is_one_clear_error(selector: object) -> None:
    with pytest.raises(ZeusConfigError, match='"energy", "time", "zeus-cost", "max-slowdown:'):
        parse_selector(selector)  # type: ignore[arg-type]


@pytest.mark.parametrize("eta", [-0.1, 1.1, float("nan")])
def test_an_eta_out_of_range_is_refused(eta: float) -> None:
    with pytest.raises(ZeusConfigError, match="eta_knob is"):
        ZeusCost(eta_knob=eta)


def test_a_selectors_name_is_what_names_it() -> None:
    for name in ("energy", "time", "zeus-cost", "max-slowdown:1.1"):
        assert parse_selector(name).name == name


@given(points)
def test_each_chooses_as_zeuss_own_does(points: list[PowerPoint]) -> None:
    points = sorted(points, key=lambda point: -point.limit_w)
    inputs = SelectorInputs(max_power_w=2.0 * points[0].limit_w)
    theirs = [
        zeus.PowerLimitMeasurement(power_limit=each.limit_w, energy=each.energy_j, time=each.time_s)
        for each in points
    ]
    for selector, of_zeus in (
        (ZeusCost(1), zeus.Energy()),
        (ZeusCost(0), zeus.Time()),
        (ZeusCost(), zeus.ZeusCost(eta_knob=0.5, world_size=2)),
    ):
        chosen = {selector.select(points, inputs), of_zeus.select(theirs)}
        costs = [selector.cost(each, inputs) for each in points if each.limit_w in chosen]
        assert min(costs) == pytest.approx(max(costs))  # of equal ones, Zeus takes the highest
    slowdown = zeus.MaxSlowdownConstraint(1.25)
    assert MaxSlowdown(1.25).select(points, inputs) == slowdown.select(theirs)
