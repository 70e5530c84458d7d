"""Quantities as people read them."""

from __future__ import annotations

import math

import pytest
from zeus_service.pages import format as shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (0.5, "0.500 J"), (999.0, "999 J"), (1234.5, "1.23 kJ"), (3.6e6, "3.60 MJ"),
     (-5.0e9, "\N{MINUS SIGN}5.00 GJ"), (2e16, "20,000 TJ"),
     (None, shown.NONE), (math.inf, shown.NONE)],
)  # fmt: skip
def test_joules(value: float | None, text: str) -> None:
    assert shown.joules(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 J"), (123.4, "123 J"), (-9.0e4, "\N{MINUS SIGN}25.0 Wh"), (3.6e6, "1.00 kWh"),
     (4.44e9, "1.23 MWh"), (3.6e13, "10,000 MWh"), (None, shown.NONE)],
)  # fmt: skip
def test_what_was_saved_is_in_the_units_of_bills(value: float | None, text: str) -> None:
    assert shown.saved_energy(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.234, "1.23 s"), (59.96, "60.0 s"), (61, "1 min 1 s"), (3600, "1 h"),
     (4980, "1 h 23 min"), (90000, "1 d 1 h"), (None, shown.NONE)],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert shown.seconds(value) == text


def test_other_texts() -> None:
    assert shown.percent(-0.123) == "\N{MINUS SIGN}12 %"
    assert shown.percent(0.5) == "+50 %"
    assert shown.iso(0.0) == "1970-01-01T00:00:00+00:00"
    assert shown.utc(1.0) == "1970-01-01 00:00:01 UTC"
    assert shown.words("out_of_memory") == "out of memory"
    assert shown.words(None) == "running"
    assert shown.job_path("a b/<é>") == "/job/a%20b%2F%3C%C3%A9%3E"
    assert shown.number(None) == shown.NONE
    assert shown.number(0.123456) == "0.12346"
