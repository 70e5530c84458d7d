"""Quantities and savings as people read them."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from service.jobs import HARDWARE
from zeus_service.api import text as shown
from zeus_service.api.messages import NextTrial, OnHardware
from zeus_service.api.savings_report import JobSavings
from zeus_service.bandit.policy import ArmEstimate


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.234, "1.23 s"), (59.96, "60.0 s"), (61, "1.02 min"), (3600, "1.00 h"),
     (-4980, "\N{MINUS SIGN}1.38 h"), (90000, "1.04 d"), (None, shown.NONE)],
)  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert shown.seconds(value) == text


def test_other_texts() -> None:
    assert shown.iso(0.0) == "1970-01-01T00:00:00+00:00"
    assert shown.utc(1.0) == "1970-01-01 00:00:01 UTC"
    assert shown.words("out_of_memory") == "out of memory"
    assert shown.words(None) == "running"
    assert shown.job_path("a b/<é>") == "/job/a%20b%2F%3C%C3%A9%3E"
    assert shown.number(None) == shown.NONE
    assert shown.number(0.123456) == "0.12346"


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
    ]
    on = OnHardware(**asdict(HARDWARE), stage="", best_batch_size=32, cost_bound=None, arms=arms)
    none = shown.NONE
    assert shown.batch_size_rows(on, NextTrial(batch_size=16, reason=""), {32: 102.3}) == [
        (8, 0, none, none, none, none, "not tried"),
        (16, 0, "150 J", "99.8 to 217 J", none, "+50 %", "next"),
        (32, 40, "100 J", "98.1 to 102 J", "102 J", none, "best"),
        (64, 2, "1,250 J", none, none, "+1,150 %", "missed the target"),
    ]
    assert shown.batch_size_rows(None, None, {}) == []


def test_a_table_of_batch_sizes_fits_into_100_columns() -> None:
    statuses = ("alive", "not_converged", "out_of_memory", "early_stopped", "errored", "diverged")
    arms = [ArmEstimate(131072, 1234, 999.0, 900.0, status) for status in statuses]
    arms.append(ArmEstimate(8, 1234, 1.0, 1.0, "alive"))
    on = OnHardware(**asdict(HARDWARE), stage="", best_batch_size=8, cost_bound=None, arms=arms)
    rows = shown.batch_size_rows(on, NextTrial(batch_size=8, reason=""), {131072: 0.123456})
    columns = zip(shown.BATCH_SIZES, *rows, strict=True)
    widths = [max(len(str(cell)) for cell in column) for column in columns]
    assert sum(widths) + 2 * (len(widths) - 1) <= 100


def about(value: float) -> dict[str, float]:
    return {"estimate": value, "low": value / 2, "high": value * 2}


def test_money_and_carbon_are_told_where_known_and_meters_that_estimate_always() -> None:
    saved = {"energy_j": about(7.2e6), "time_s": about(7200)}
    rates = {"energy_kwh": about(2), "money": about(0.6), "currency": "EUR", "co2e_kg": about(0.8)}
    rates["gpu_time_s"] = about(7200)
    job = JobSavings.model_validate(
        {
            "job_id": "job",
            "estimated": True,
            "default_batch_size": 64,
            "recurrences": 1,
            "spent": {"energy_j": 1, "time_s": 1, "cost": 1},
            "saved": {**saved, **rates},
            "hardware": [
                {
                    **asdict(HARDWARE),
                    "meter": meter,
                    "estimated": "estimate" in meter,
                    "recurrences": 1,
                    "spent": {"energy_j": 1, "time_s": 1, "cost": 1},
                    "expected": None,
                    "default_runs": 1,
                    "saved": None,
                }
                for meter in ("cpu-estimate", "nvml")
            ],
        }
    )
    assert shown.savings_summary(job) == (
        "saved compared with the default batch size, 64: 2.00 kWh (1.00 to 4.00 kWh), "
        "2.00 h (1.00 to 4.00 h), EUR 0.60 (EUR 0.30 to EUR 1.20), "
        "0.800 (0.400 to 1.60) kg CO2e; energy is estimated by cpu-estimate"
    )
    assert job.saved is not None
    unpriced = replace(job.saved, money=None, co2e_kg=None)
    assert "EUR" not in shown.savings_summary(job.model_copy(update={"saved": unpriced}))
