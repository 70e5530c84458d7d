"""Sums of what was saved, and their errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from service.jobs import HARDWARE, spec
from zeus_service.savings.expected import Expected
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import saved

JOB, POWER_W = spec(eta_knob=0.25), HARDWARE.max_power_w
ERA = Era(
    1, HARDWARE, 4, 300.0, 30.0, JOB.cost(300.0, 30.0, POWER_W), Expected(100.0, 10.0, 5.0, 1.0)
)


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
