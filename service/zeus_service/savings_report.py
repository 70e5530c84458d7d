"""What jobs have saved against their default batch sizes; `ledger.py` defines savings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from sqlalchemy import Connection, select

from zeus_service import messages
from zeus_service.config import current_config
from zeus_service.db import jobs, savings
from zeus_service.db.clock import DAY_S, unix_day
from zeus_service.db.transactions import use_case
from zeus_service.savings import ledger
from zeus_service.savings.expected import (
    Amounts,
    Expectation,
    Ledger,
    as_amounts,
    expectation,
    power_ratio,
)
from zeus_service.savings.ledger import Saved

J_PER_KWH = 3.6e6
_MONDAY = 4
"""Day 4 since 1970, a Thursday, was a Monday."""

Day = tuple[int, int, Saved]
"""A day since 1970 in UTC, the recurrences on it, and what was saved."""


@dataclass(frozen=True)
class Rates:
    """What energy costs.

    Args:
        price_per_kwh: In money, of whatever currency.
        carbon_intensity: Grams of CO2 equivalent for each kWh.
    """

    price_per_kwh: float | None = None
    carbon_intensity: float | None = None

    @classmethod
    def configured(cls) -> Rates:
        """The rates in the configuration; to be called within the application's context."""
        config = current_config()
        return cls(config.price_per_kwh, config.carbon_intensity)


@use_case(read_only=True)
def of_job(
    connection: Connection, job_id: str, rates: Rates, *, days: int = 30, points: int = 200
) -> messages.JobSavings:
    """Return what a job has saved, on its latest days, and over its trials.

    Args:
        connection: In a transaction.
        job_id: The job.
        rates: What energy costs.
        days: How many days, up to today, and up to six before them to begin on a Monday.
        points: How many points, at most: of jobs with more trials, a point has several. None are
            read if it is 0.

    Raises:
        NotFound: No such job.
    """
    job = jobs.get(connection, job_id)
    expected = expectation(job.spec, job.ledger, job.state)
    by_day = savings.days(connection, since=_first(connection, days), job_id=job_id)
    portions = (
        savings.portions(connection, job_id, trials=job.trials, limit=points) if points else []
    )
    return messages.JobSavings(
        job_id=job_id,
        meter=job.spec.meter,
        estimated=job.spec.estimated,
        default_batch_size=job.spec.default_batch_size,
        recurrences=ledger.recurrences(job.ledger),
        spent=_spent(ledger.spent(job.ledger)),
        expected=_amounts(expected.mean, expected.error) if expected else None,
        basis=expected.basis if expected else None,
        default_runs=job.ledger["default"]["count"],
        power_limit=_power_ratio(job.ledger),
        saved=_saved(job.saved, rates) if job.saved else None,
        days=_days(by_day, rates),
        weeks=_weeks(by_day, rates),
        points=[
            messages.SavingsPoint(
                trial_number=portion.last_trial,
                ended_at=portion.ended_at,
                recurrences=portion.recurrences,
                spent=_spent(portion.spent),
                saved=_saved_in(job.ledger, portion, expected) if expected else None,
            )
            for portion in portions
        ],
    )


@use_case(read_only=True)
def of_all_jobs(connection: Connection, rates: Rates, *, days: int = 30) -> messages.Savings:
    """Return what all jobs have saved together, and on the latest days; see `of_job`."""
    totals = savings.totals(connection)
    by_day = savings.days(connection, since=_first(connection, days))
    all_jobs = sum(total.jobs for total in totals)
    return messages.Savings(
        jobs=all_jobs,
        unknown=all_jobs - sum(total.known for total in totals),
        estimated=any(total.estimated and total.known for total in totals),
        saved=_saved(_independent(total.saved for total in totals), rates),
        by_meter=[
            messages.SavingsOfMeter(
                estimated=total.estimated, jobs=total.known, saved=_saved(total.saved, rates)
            )
            for total in totals
        ],
        days=_days(by_day, rates),
        weeks=_weeks(by_day, rates),
    )


def _power_ratio(book: Ledger) -> messages.PowerRatio | None:
    if (ratio := power_ratio(book)) is None:
        return None
    (limit_w, default_limit_w), (energy, time) = book["limits"], ratio
    return messages.PowerRatio(
        limit_w=limit_w, default_limit_w=default_limit_w, energy=energy, time=time
    )


def _first(connection: Connection, days: int) -> int:
    """The Monday on or before the first of the latest days, by the database's clock."""
    first = int(connection.execute(select(unix_day())).scalar_one()) - days + 1
    return first - (first - _MONDAY) % 7


def _days(by_day: list[Day], rates: Rates) -> list[messages.SavedOnDay]:
    return [
        messages.SavedOnDay(
            day=f"{datetime.fromtimestamp(day * DAY_S, UTC):%Y-%m-%d}",
            recurrences=recurrences,
            saved=_saved(saved, rates),
        )
        for day, recurrences, saved in by_day
    ]


def _weeks(by_day: list[Day], rates: Rates) -> list[messages.SavedOnDay]:
    """Sums over weeks. Errors of days add up: they come from the same expectations."""
    weeks = []
    for monday, group in groupby(by_day, key=lambda each: each[0] - (each[0] - _MONDAY) % 7):
        _, recurrences, saved = zip(*group, strict=True)
        mean = as_amounts(map(sum, zip(*(day.mean for day in saved), strict=True)))
        error = as_amounts(map(sum, zip(*(day.error for day in saved), strict=True)))
        weeks.append((monday, sum(recurrences), Saved(mean, error)))
    return _days(weeks, rates)


def _independent(parts: Iterable[Saved]) -> Saved:
    """The sum of parts whose errors are independent."""
    mean, square = [0.0] * 3, [0.0] * 3
    for part in parts:
        mean = [total + each for total, each in zip(mean, part.mean, strict=True)]
        square = [total + each**2 for total, each in zip(square, part.error, strict=True)]
    return Saved(as_amounts(mean), as_amounts(each**0.5 for each in square))


def _saved_in(book: Ledger, portion: savings.Portion, expected: Expectation) -> messages.Amounts:
    """What the trials of a portion have saved."""
    then = ledger.expected_at(book, portion.last_trial, expected)
    count = portion.recurrences
    pairs = zip(then.mean, portion.spent, strict=True)
    saved = as_amounts(count * mean - spent for mean, spent in pairs)
    return _amounts(saved, as_amounts(count * error for error in then.error))


def _spent(amounts: Amounts) -> messages.Spent:
    energy_j, time_s, cost = amounts
    return messages.Spent(energy_j=energy_j, time_s=time_s, cost=cost)


def _amounts(mean: Amounts, error: Amounts) -> messages.Amounts:
    energy_j, time_s, cost = map(_estimate, mean, error)
    return messages.Amounts(energy_j=energy_j, time_s=time_s, cost=cost)


def _saved(saved: Saved, rates: Rates) -> messages.SavedAmounts:
    energy, error = saved.mean[0] / J_PER_KWH, saved.error[0] / J_PER_KWH

    def times(rate: float | None) -> messages.Estimate | None:
        return None if rate is None else _estimate(energy * rate, error * rate)

    intensity = rates.carbon_intensity
    return messages.SavedAmounts(
        **dict(_amounts(saved.mean, saved.error)),
        energy_kwh=_estimate(energy, error),
        money=times(rates.price_per_kwh),
        co2e_kg=times(None if intensity is None else intensity / 1000),
    )


def _estimate(mean: float, error: float) -> messages.Estimate:
    return messages.Estimate(estimate=mean, low=mean - error, high=mean + error)
