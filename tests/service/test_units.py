"""Quantities as people read them."""

from __future__ import annotations

import math

import pytest
from zeus_service.units import MINUS, NONE, energy, range_with_unit, shared_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (0.5, "0.500 J"), (3599.0, "3,599 J"), (-9.0e4, f"{MINUS}25.0 Wh"),
     (3.6e6, "1.00 kWh"), (4.44e9, "1.23 MWh"), (3.6e13, "10,000 MWh"),
     (None, NONE), (math.inf, NONE)],
)  # fmt: skip
def test_energies_are_in_the_units_of_bills(value: float | None, text: str) -> None:
    assert energy(value) == text


def test_a_range_has_the_unit_of_its_larger_end() -> None:
    assert range_with_unit(3.6e6, 7.2e6) == "1.00 to 2.00 kWh"
    assert range_with_unit(3.6e5, 7.2e6) == "0.100 to 2.00 kWh"
    assert range_with_unit(-7.2e6, 9.0e4) == f"{MINUS}2.00 to 0.0250 kWh"
    assert range_with_unit(36.0, 7.2e9) == "0 to 2.00 MWh"


def test_energies_of_one_table_have_the_unit_of_the_largest() -> None:
    values = [1.04 * 3.6e6, None, 563 * 3.6e3, 0.0]
    units = shared_unit(values)
    assert [energy(each, units) for each in values] == ["1.04 kWh", NONE, "0.563 kWh", "0 kWh"]
    assert energy(12.0, shared_unit([])) == "12.0 J"
