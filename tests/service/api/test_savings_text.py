"""What was saved, as text: its intervals, and that meters estimate."""

from __future__ import annotations

from zeus_service.api.messages import JobSavings
from zeus_service.api.savings_text import summary


def about(value: float) -> dict[str, float]:
    return {"estimate": value, "low": value / 2, "high": value * 2}


def test_money_and_carbon_are_told_where_known_and_meters_that_estimate_always() -> None:
    saved = {"energy_j": about(7.2e6), "time_s": about(7200), "cost": about(1)}
    rates = {"energy_kwh": about(2), "money": about(0.6), "co2e_kg": about(0.8)}
    job = JobSavings.model_validate(
        {
            "job_id": "job",
            "meter": "cpu-estimate",
            "estimated": True,
            "default_batch_size": 64,
            "recurrences": 1,
            "spent": {"energy_j": 1, "time_s": 1, "cost": 1},
            "expected": None,
            "basis": "runs",
            "default_runs": 1,
            "saved": {**saved, **rates},
            "days": [],
            "weeks": [],
            "points": [],
        }
    )
    assert summary(job) == (
        "job 'job' has saved 2 kWh (1 kWh to 4 kWh), 2 h (1 h to 4 h), 0.6 (0.3 to 1.2) of money, "
        "0.8 (0.4 to 1.6) kg CO2e, against the default batch size; energy is estimated by "
        "cpu-estimate"
    )
    assert job.saved is not None
    unpriced = job.saved.model_copy(update={"money": None, "co2e_kg": None})
    assert "money" not in summary(job.model_copy(update={"saved": unpriced}))
