"""Sums of what was saved, and their errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from service.jobs import HARDWARE, spec
from zeus_service.savings.expected import Expected
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import Estimate, saved, total

JOB, POWER_W = spec(eta_knob=0.25), HARDWARE.max_power_w
ERA = Era(
    1, HARDWARE, 4, 300.0, 30.0, JOB.cost(300.0, 30.0, POWER_W), Expected(100.0, 10.0, 5.0, 1.0)
)


def test_an_era_saves_what_its_recurrences_are_expected_to_spend_less_what_was_spent() -> None:
    found = saved(JOB, [ERA])
    assert found is not None
    assert found.energy_j == Estimate.of(100.0, 20.0)
    assert found.time_s == Estimate.of(10.0, 4.0)
    assert (found.energy_j.low, found.energy_j.high) == (80.0, 120.0)
    assert found.cost.estimate == pytest.approx(JOB.cost(100.0, 10.0, POWER_W))
    assert found.cost.error == pytest.approx(JOB.cost(20.0, 4.0, POWER_W))
    assert found.energy_j.times(0.5) == Estimate.of(50.0, 10.0)


def test_an_era_without_an_expectation_is_left_out() -> None:
    unknown = replace(ERA, number=2, expected=None)
    assert saved(JOB, [unknown]) is None
    assert saved(JOB, [ERA, unknown]) == saved(JOB, [ERA])


def test_errors_of_eras_are_independent_unless_an_expectation_was_carried_over() -> None:
    def era(number: int, carried_from: int | None = None) -> Era:
        return replace(ERA, number=number, expected=replace(known, carried_from=carried_from))

    known = Expected(100.0, 10.0, 5.0, 1.0)
    for eras, wanted in (
        ([era(1), era(2)], math.hypot(20, 20)),
        ([era(1), era(2, 1)], 40),
        ([era(1), era(2, 1), era(3, 2), era(4)], math.hypot(60, 20)),
        ([era(1, 4), era(2), era(4)], math.hypot(40, 20)),  # carried over from other hardware
        ([era(2, 1), era(3)], math.hypot(20, 20)),  # of a week without trials of the first
    ):
        found = saved(JOB, eras)
        assert found is not None
        assert found.energy_j.error == pytest.approx(wanted)


def test_each_era_costs_by_the_power_of_its_own_hardware() -> None:
    other = replace(HARDWARE, max_power_w=5 * POWER_W)
    there = replace(ERA, number=2, hardware=other, cost=JOB.cost(300.0, 30.0, 5 * POWER_W))
    found = saved(JOB, [ERA, there])
    assert found is not None
    costs = [JOB.cost(100.0, 10.0, power_w) for power_w in (POWER_W, 5 * POWER_W)]
    assert found.cost.estimate == pytest.approx(sum(costs))


def test_jobs_add_up_with_independent_errors() -> None:
    one = saved(JOB, [ERA])
    assert one is not None
    both = total([one, one])
    assert both.energy_j.estimate == 200.0
    assert both.energy_j.error == pytest.approx(math.hypot(20, 20))
    assert both.cost.estimate == pytest.approx(2 * one.cost.estimate)
    assert total([]).time_s == Estimate.of(0.0, 0.0)
