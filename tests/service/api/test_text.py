"""Quantities and savings as people read them."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from service.jobs import HARDWARE
from zeus_service.api import text as shown
from zeus_service.api.messages import NextTrial, OnHardware
from zeus_service.bandit.policy import ArmEstimate


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.234, "1.23 s"), (59.96, "60.0 s"), (61, "1.02 min"), (3600, "1.00 h"),
     (-4980, "\N{MINUS SIGN}1.38 h"), (90000, "1.04 d"), (None, shown.NONE)],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert shown.seconds(value) == text


def test_money_has_its_currency_and_as_many_digits_as_say_something() -> None:
    amounts = (0.0, 0.00123, 1.556, -12.5, 12345.6)
    assert [shown.money(value, "EUR") for value in amounts] == [
        *("EUR 0.00", "EUR 0.00123", "EUR 1.56", "EUR \N{MINUS SIGN}12.50", "EUR 12,346"),
    ]


def test_batch_sizes_are_compared_with_the_best() -> None:
    arms = [
        ArmEstimate(8, 0, None, None, "alive"),
        ArmEstimate(16, 0, 150.0, 30.0, "alive"),
        ArmEstimate(32, 40, 100.0, 1.0, "alive"),
        ArmEstimate(64, 2, 1250.0, None, "not_converged"),
        ArmEstimate(128, 1, None, None, "out_of_memory"),
        ArmEstimate(256, 0, None, None, "out_of_memory"),
    ]
    on = OnHardware(**asdict(HARDWARE), best_batch_size=32, cost_bound=None, arms=arms)
    none = shown.NONE
    assert shown.batch_size_rows(on, NextTrial(batch_size=16, reason="")) == [
        (8, 0, none, none, none, "no result"),
        (16, 0, "150 J", "99.8 to 217 J", "+50 %", "next"),
        (32, 40, "100 J", "98.1 to 102 J", none, "best"),
        (64, 2, "1,250 J", none, "+1,150 %", "missed the target"),
        (128, 1, none, none, none, "ran out of memory"),
        (256, 0, none, none, none, "a smaller one ran out of memory"),
    ]
    assert shown.batch_size_rows(None, None) == []


def test_the_costs_of_one_table_have_one_unit() -> None:
    arms = [ArmEstimate(8, 1, 1569.6, None, "alive"), ArmEstimate(16, 0, 3996.0, None, "alive")]
    on = OnHardware(**asdict(HARDWARE), best_batch_size=8, cost_bound=None, arms=arms)
    rows = shown.batch_size_rows(on, None)
    assert [row[2] for row in rows] == ["0.436 Wh", "1.11 Wh"]


def test_a_table_of_batch_sizes_fits_into_100_columns() -> None:
    statuses = ("alive", "not_converged", "out_of_memory", "early_stopped", "errored", "diverged")
    arms = [ArmEstimate(131072, 1234, 999.0, 900.0, status) for status in statuses]
    arms.append(ArmEstimate(8, 1234, 1.0, 1.0, "alive"))
    on = OnHardware(**asdict(HARDWARE), best_batch_size=8, cost_bound=None, arms=arms)
    rows = shown.batch_size_rows(on, NextTrial(batch_size=8, reason=""))
    columns = zip(shown.BATCH_SIZES, *rows, strict=True)
    widths = [max(len(str(cell)) for cell in column) for column in columns]
    assert sum(widths) + 2 * (len(widths) - 1) <= 100
