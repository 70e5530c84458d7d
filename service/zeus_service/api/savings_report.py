"""What was saved against the default batch sizes, as the API, pages and commands show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from zeus_service.api import messages
from zeus_service.bandit.spec import JobSpec
from zeus_service.config import current_config
from zeus_service.db import jobs, savings
from zeus_service.db.clock import DAY_S, unix_day, unix_now
from zeus_service.db.session import use_case
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import J_PER_KWH, Estimate, Saved, saved, total

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
    session: Session, job_id: str, rates: Rates, *, days: int = 30, points: int = 200
) -> messages.JobSavings:
    """Return what a job has saved, on its latest days, and over its trials.

    Args:
        session: In a transaction.
        job_id: The job.
        rates: What energy costs.
        days: How many days, up to today, and up to six before them to begin on a Monday.
        points: How many points, at most: of jobs with more trials, a point has several. 0: none,
            which takes no pass over the trials.

    Raises:
        NotFound: No such job.
    """
    job = jobs.get(session, job_id)
    spec, eras = jobs.specification(job), savings.load_eras(session, job)
    expected = eras[-1].expected if eras else None
    runs = job.ledger["arms"].get(str(spec.default_batch_size), {}).get("runs", 0)
    is_from_runs = bool(runs or (expected and expected.carried))
    first = _first(session, days)
    power_w = job.max_power_w
    by_day = _days(spec, power_w, savings.by_day(session, job, since=first)) if points else []
    known = saved(spec, power_w, eras)
    return messages.JobSavings(
        job_id=job_id,
        meter=job.hardware["meter"] if job.hardware else None,
        estimated=job.estimated,
        default_batch_size=spec.default_batch_size,
        recurrences=sum(era.recurrences for era in eras),
        spent=_spent(eras),
        expected=_expected(spec, power_w, eras[-1]) if expected else None,
        basis=None if expected is None else "runs" if is_from_runs else "estimate",
        default_runs=runs,
        saved=None if known is None else _amounts(known, rates),
        days=_on_days(by_day, rates),
        weeks=_on_days(_weeks(by_day), rates),
        points=[
            messages.SavingsPoint(
                trial_number=portion.last_trial,
                ended_at=portion.ended_at,
                recurrences=sum(era.recurrences for era in portion.eras),
                spent=_spent(portion.eras),
                saved=None if part is None else _plain_amounts(part),
            )
            for portion in (savings.by_number(session, job, limit=points) if points else ())
            for part in [saved(spec, power_w, portion.eras)]
        ],
    )


@use_case(read_only=True)
def of_all_jobs(session: Session, rates: Rates, *, days: int = 30) -> messages.Savings:
    """Return what all jobs have saved together, and on the latest days; see `of_job`."""
    totals = savings.totals(session)
    by_day = savings.days_of_all(session, since=_first(session, days))
    all_jobs = sum(each.jobs for each in totals)
    return messages.Savings(
        jobs=all_jobs,
        unknown=all_jobs - sum(each.known for each in totals),
        estimated=any(each.estimated and each.known for each in totals),
        saved=_amounts(total(each.saved for each in totals), rates),
        by_meter=[
            messages.SavingsOfMeter(
                estimated=each.estimated, jobs=each.known, saved=_amounts(each.saved, rates)
            )
            for each in totals
        ],
        days=_on_days(by_day, rates),
        weeks=_on_days(_weeks(by_day), rates),
    )


def _first(session: Session, days: int) -> int:
    """The Monday on or before the first of the latest days, by the database's clock."""
    first = int(session.execute(select(unix_day(unix_now()))).scalar_one()) - days + 1
    return first - (first - _MONDAY) % 7


def _days(spec: JobSpec, max_power_w: float, portions: Iterable[savings.Portion]) -> list[Day]:
    return [
        (portion.key, sum(era.recurrences for era in portion.eras), part)
        for portion in portions
        if (part := saved(spec, max_power_w, portion.eras)) is not None
    ]


def _weeks(by_day: list[Day]) -> list[Day]:
    """Sums over weeks. Errors of days add up: they come from the same expectations."""
    weeks = []
    for monday, group in groupby(by_day, key=lambda each: each[0] - (each[0] - _MONDAY) % 7):
        _, recurrences, parts = zip(*group, strict=True)
        energy = _sum(part.energy_j for part in parts)
        time, cost = _sum(part.time_s for part in parts), _sum(part.cost for part in parts)
        weeks.append((monday, sum(recurrences), Saved(energy, time, cost)))
    return weeks


def _sum(estimates: Iterable[Estimate]) -> Estimate:
    means, errors = zip(*((each.mean, each.error) for each in estimates), strict=True)
    return Estimate(sum(means), sum(errors))


def _on_days(by_day: list[Day], rates: Rates) -> list[messages.SavedOnDay]:
    return [
        messages.SavedOnDay(
            day=f"{datetime.fromtimestamp(day * DAY_S, UTC):%Y-%m-%d}",
            recurrences=recurrences,
            saved=_amounts(part, rates),
        )
        for day, recurrences, part in by_day
    ]


def _spent(eras: Iterable[Era]) -> messages.Spent:
    every = list(eras)
    return messages.Spent(
        energy_j=sum(era.energy_j for era in every),
        time_s=sum(era.time_s for era in every),
        cost=sum(era.cost for era in every),
    )


def _expected(spec: JobSpec, max_power_w: float, era: Era) -> messages.Amounts:
    """What one run of the default is expected to spend: what a run for nothing would save."""
    one = Era(era.number, 1, 0.0, 0.0, 0.0, era.expected)
    part = saved(spec, max_power_w, [one])
    assert part is not None, "the era has an expectation"
    return _plain_amounts(part)


def _plain_amounts(part: Saved) -> messages.Amounts:
    return messages.Amounts(
        energy_j=_estimate(part.energy_j), time_s=_estimate(part.time_s), cost=_estimate(part.cost)
    )


def _amounts(part: Saved, rates: Rates) -> messages.SavedAmounts:
    energy = part.energy_j.times(1 / J_PER_KWH)
    price, intensity = rates.price_per_kwh, rates.carbon_intensity
    return messages.SavedAmounts(
        **dict(_plain_amounts(part)),
        energy_kwh=_estimate(energy),
        money=None if price is None else _estimate(energy.times(price)),
        co2e_kg=None if intensity is None else _estimate(energy.times(intensity / 1000)),
    )


def _estimate(value: Estimate) -> messages.Estimate:
    return messages.Estimate(estimate=value.mean, low=value.low, high=value.high)
