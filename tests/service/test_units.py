"""Quantities as people read them."""

from __future__ import annotations

import math

import pytest
from zeus_service.units import NONE, joules


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (0.5, "0.500 J"), (999.0, "999 J"), (1234.5, "1.23 kJ"), (3.6e6, "3.60 MJ"),
     (-5.0e9, "-5.00 GJ"), (2e16, "20,000 TJ"),
     (None, NONE), (math.inf, NONE)],
)  # fmt: skip
def test_joules(value: float | None, text: str) -> None:
    assert joules(value) == text
