"""What jobs have saved, as the API answers: sums of trials, eras, weeks and jobs agree."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import date
from typing import Any

import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.db.test_power_profiles import profile as any_profile
from service.jobs import HARDWARE, OTHER
from service.jobs import register as register_job
from service.jobs import report as new_report
from sqlalchemy import update
from zeus_service import maintenance, optimizer
from zeus_service.api import savings_report as savings
from zeus_service.api.savings_report import Savings
from zeus_service.config import Config
from zeus_service.db import power_profiles, queries
from zeus_service.db.session import transaction
from zeus_service.db.tables import Trial
from zeus_service.pages import figures

ESTIMATING = replace(HARDWARE, meter="cpu-estimate", estimated=True)


def register(job_id: str = "job", **changes: Any) -> None:
    register_job(
        job_id=job_id, **{"eta_knob": 1.0, "beta_knob": None, "policy": "default", **changes}
    )


def start(job_id: str = "job") -> int:
    return optimizer.start_trial(job_id)[1].trial_number


def report(
    number: int, energy_j: float, job_id: str = "job", *, sequence: int = 1, **limits: float
) -> None:
    """A report of a run that reaches its target with its second one."""
    figures = {"time_s": energy_j / 10, "energy_j": energy_j, "metric": sequence / 2}
    optimizer.report(job_id, number, new_report(sequence, epoch=1, **figures, **limits))


def end(number: int, outcome: Any = "errored") -> None:
    optimizer.end_trial("job", number, outcome)


def profile(**changes: Any) -> dict[str, Any]:
    """30 J and 1 s a batch at 300 W, the default; 25 J and 1.2 s at 200 W."""
    points = [
        {"limit_w": 300, "energy_j": 30.0, "time_s": 1.0},
        {"limit_w": 200, "energy_j": 25.0, "time_s": 1.2},
    ]
    return any_profile(
        device_model="Fake GPU", num_devices=1, points=points, chosen_w=200, **changes
    )


def days_ago(number: int, days: float) -> None:
    """Let a trial have ended some days ago."""
    this = update(Trial).where(Trial.trial_number == number)
    with transaction() as session:
        session.execute(this.values(ended_at=Trial.ended_at - days * 86400))


def converge(energy_j: float, job_id: str = "job", **limits: float) -> int:
    number = start(job_id)
    report(number, energy_j, job_id, sequence=2, **limits)
    return number


def of_all(weeks: int = 13) -> Savings:
    return savings.all_savings(weeks=weeks)


@on_sqlite
def test_a_job_has_saved_its_recurrences_times_the_expectation_less_what_it_spent(
    app: Flask,
) -> None:
    register()
    for energy_j in (90.0, 110.0):
        converge(energy_j)
    report(start(), 40.0)
    report(failed := start(), 30.0)
    end(failed, "errored")
    found = savings.job_savings("job")
    assert found.recurrences == 2
    assert found.spent.energy_j == 230.0  # a running trial does not count yet
    (here,) = found.hardware
    assert here.expected is not None
    assert here.default_runs == 2
    assert here.expected.energy_j.estimate == pytest.approx(100.0)
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(-30.0)
    assert found.saved.energy_j.low < -30 < found.saved.energy_j.high
    assert found.saved.time_s.estimate == pytest.approx(-3.0)
    assert found.saved.energy_kwh.estimate == pytest.approx(-30 / 3.6e6)


@on_sqlite
def test_a_lost_trial_counts_at_the_next_start_and_once_when_it_comes_back(app: Flask) -> None:
    register(lease_s=1.0)
    converge(100.0)
    report(lost := start(), 40.0)
    with transaction() as session:
        session.execute(update(Trial).values(lease_expires_at=1.0))
    start()
    assert savings.job_savings("job").spent.energy_j == 140.0
    report(lost, 100.0, sequence=2)
    found = savings.job_savings("job")
    assert (found.spent.energy_j, found.recurrences) == (200.0, 2)
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(0.0)
    assert sum(week.recurrences for week in of_all().weeks) == 2


def test_weeks_add_up_to_what_was_saved(app: Flask) -> None:
    register()
    for age, energy_j in enumerate((90.0, 120.0, 99.0, 75.0)):
        days_ago(converge(energy_j), 7 * (4 - age))
    found, weeks = savings.job_savings("job"), of_all().weeks
    assert len(weeks) == 4
    assert {date.fromisoformat(week.week).weekday() for week in weeks} == {0}
    assert found.saved is not None
    total = sum(week.saved.energy_j.estimate for week in weeks)
    assert total == pytest.approx(found.saved.energy_j.estimate, abs=1e-6)
    assert sum(week.recurrences for week in weeks) == 4
    assert of_all(weeks=1).weeks == []
    assert len(of_all(weeks=2).weeks) == 1


def test_jobs_that_count_add_up_and_estimated_meters_are_told(app: Flask) -> None:
    assert (of_all().since, of_all().spent_energy_j) == (None, 0.0)
    register("unknown")
    report(start("unknown"), 70.0, "unknown")
    optimizer.end_trial("unknown", 1, "errored")
    assert of_all().since is None
    for job_id, hardware in (("a", HARDWARE), ("b", HARDWARE), ("c", ESTIMATING)):
        register(job_id, hardware=hardware, policy="zeus", mab_num_explorations=1)
        converge(100.0, job_id)
        converge(60.0, job_id)
    each = [savings.job_savings(job_id).saved for job_id in "abc"]
    errors = [one.energy_j.high - one.energy_j.estimate for one in each if one]
    found = of_all()
    assert (found.jobs, found.unknown, found.estimated) == (4, 1, True)
    assert (found.since, found.spent_energy_j) == (optimizer.get_job("a").created_at, 480.0)
    assert found.saved.energy_j.estimate == pytest.approx(120.0)
    band = found.saved.energy_j.high - found.saved.energy_j.estimate
    assert band == pytest.approx(sum(error**2 for error in errors) ** 0.5)
    assert found.weeks[0].saved.energy_j.high == pytest.approx(found.saved.energy_j.high)


@on_sqlite
def test_money_is_the_price_of_the_energy_and_of_the_hours_of_all_gpus(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(hardware=None, policy="zeus")
    for energy_j in (7.2e6, 3.6e6):  # 200 h and 100 h of two GPUs
        number = optimizer.start_trial("job", hardware=OTHER)[1].trial_number
        report(number, energy_j, sequence=2)

    def money(**prices: float) -> float | None:
        monkeypatch.setitem(app.extensions, "zeus_config", Config(**prices))
        found = of_all()
        assert found.saved.gpu_time_s.estimate == pytest.approx(2 * 100 * 3600)
        (week,) = found.weeks
        assert astuple(week.saved.gpu_time_s) == pytest.approx(astuple(found.saved.gpu_time_s))
        return found.saved.money and found.saved.money.estimate

    assert money() is None
    assert money(price_per_kwh=0.5) == pytest.approx(0.5)
    assert money(price_per_gpu_hour=2.0) == pytest.approx(400.0)
    assert money(price_per_kwh=0.5, price_per_gpu_hour=2.0) == pytest.approx(400.5)


@on_sqlite
def test_a_job_that_is_registered_anew_begins_with_nothing_spent(app: Flask) -> None:
    register()
    report(number := start(), 30.0)
    end(number, "errored")
    assert of_all().weeks == []  # nothing is expected yet
    register(monitor="val_loss", hardware=ESTIMATING)
    found = savings.job_savings("job")
    assert (found.spent.energy_j, found.estimated) == (0.0, True)
    assert optimizer.get_job("job").estimated


@on_sqlite
def test_a_power_profile_counts_for_the_runs_below_the_default_limit(app: Flask) -> None:
    register()
    power_profiles.put("job", profile())  # 30 J at 300 W, the default, and 25 J at 200 W
    converge(120.0, power_limit_w=300.0, default_power_limit_w=300.0)
    found = savings.job_savings("job")
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(0.0)
    number = start()
    report(number, 50.0, power_limit_w=300.0, default_power_limit_w=300.0)
    report(number, 100.0, sequence=2, power_limit_w=100.0, default_power_limit_w=300.0)
    assert queries.get_trial("job", number)[0].power_limit_w == pytest.approx(200.0)
    found = savings.job_savings("job")
    assert found.hardware[0].expected is not None
    # The two runs took 110 J at 250 W in the mean; a batch takes 30 J instead of 27.5 J at 300 W.
    assert found.hardware[0].expected.energy_j.estimate == pytest.approx(120.0)
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(20.0)
    power_profiles.put("job", profile(batch_size=64))
    assert savings.job_savings("job") == found


@on_sqlite
def test_a_dead_meter_saves_nothing(app: Flask) -> None:
    register()
    for _ in range(5):
        converge(10_000.0)
    for _ in range(20):
        converge(0.0)
    found = savings.job_savings("job")
    assert found.recurrences == 5
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(0.0, abs=1e-6)
    assert maintenance.rebuild("job")


@on_sqlite
def test_a_revival_takes_back_what_the_trial_had_spent_from_its_own_era(app: Flask) -> None:
    register()
    for energy_j in (100.0, 101.0, 99.0):
        converge(energy_j)
    report(revived := start(), 40.0)
    end(revived)
    while queries.get_trial("job", (last := converge(300.0)))[0].era == 1:
        pass  # until the job counts as changed
    before = savings.job_savings("job")
    assert before.saved is not None
    report(revived, 41.0, sequence=3)
    after = savings.job_savings("job")
    assert after.spent.energy_j == pytest.approx(before.spent.energy_j + 1.0)
    assert queries.get_trial("job", last)[0].era == 2
    assert queries.get_trial("job", revived)[0].era == 2
    assert after.recurrences == before.recurrences + 1
    assert maintenance.rebuild("job")


@on_sqlite
def test_the_curve_of_a_job_ends_with_the_sum_and_the_band_of_the_headline(app: Flask) -> None:
    register()
    for energy_j in (90.0, 120.0, 99.0):
        converge(energy_j)
    found = savings.job_savings("job")
    assert found.saved is not None
    energy = found.saved.energy_j
    band, line = (trace["y"] for trace in figures.draw_job("job")["saved"]["data"])
    low, high = band[: len(line)], band[len(line) :][::-1]
    assert [low[0], high[0], line[0]] == pytest.approx([0.0] * 3, abs=1e-9)
    ends = [each[-1] for each in (low, high, line)]
    assert ends == pytest.approx([energy.low, energy.high, energy.estimate])


@on_sqlite
def test_savings_are_of_each_hardware_and_add_up_after_a_move(app: Flask) -> None:
    register(hardware=None, policy="zeus")
    path = [(HARDWARE, 100.0), (HARDWARE, 80.0), (OTHER, 300.0), (HARDWARE, 102.0), (OTHER, 240.0)]
    for hardware, energy_j in path:
        number = optimizer.start_trial("job", hardware=hardware)[1].trial_number
        report(number, energy_j, sequence=2)
    found = savings.job_savings("job")
    assert [each.device_model for each in found.hardware] == ["Fake GPU", "Other GPU"]
    assert [each.recurrences for each in found.hardware] == [3, 2]
    assert [each.spent.energy_j for each in found.hardware] == [282.0, 540.0]
    parts = [each.saved.energy_j.estimate for each in found.hardware if each.saved]
    assert found.saved is not None
    assert found.saved.energy_j.estimate == pytest.approx(sum(parts))
    expected = [each.expected.energy_j.estimate for each in found.hardware if each.expected]
    assert expected == pytest.approx([100.0, 300.0])
    (week,) = of_all().weeks
    assert week.saved.energy_j.estimate == pytest.approx(sum(parts))
    assert maintenance.rebuild("job")
    maintenance.delete_job("job")
    assert (of_all().jobs, of_all().weeks) == (0, [])
