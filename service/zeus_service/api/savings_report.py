"""What was saved against the default batch sizes, as the API, pages and commands show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer_group

from zeus_service.api import savings_messages as messages
from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.spec import JobSpec
from zeus_service.config import current_config
from zeus_service.db import jobs, savings
from zeus_service.db.clock import SINCE_MONDAY_S, WEEK_S
from zeus_service.db.session import use_case
from zeus_service.db.tables import Job
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import J_PER_KWH, Estimate, Saved, expected, saved, total

WEEKS = 13
"""How many of the latest weeks are shown, unless another number is asked for."""


@use_case(read_only=True)
def of_job(
    session: Session, job_id: str, *, weeks: int = WEEKS, points: int = 200
) -> messages.JobSavings:
    """Return what a job has saved, in its latest weeks, and over its trials.

    Args:
        session: In a transaction.
        job_id: The job.
        weeks: How many weeks, the current one included.
        points: How many points, at most: of jobs with more trials, a point has several.

    With neither weeks nor points, it takes no pass over the trials.

    Raises:
        NotFound: No such job.
    """
    return _of_job(session, jobs.get(session, job_id), weeks, points)


@use_case(read_only=True)
def of_largest_savers(session: Session, limit: int) -> list[tuple[float, messages.JobSavings]]:
    """Return the jobs that have saved most energy, and the joules that each has spent for it."""
    query = select(Job).where(Job.job_id.is_not(None), Job.saved_energy_j > 0)
    query = query.order_by(Job.saved_energy_j.desc()).limit(limit).options(undefer_group("state"))
    return [(job.spent_energy_j, _of_job(session, job, 0, 0)) for job in session.scalars(query)]


def _of_job(session: Session, job: Job, weeks: int, points: int) -> messages.JobSavings:
    spec, eras = jobs.specification(job), savings.load_eras(session, job)
    known = saved(spec, eras)
    hardware = list(map(Hardware.of, job.hardware))
    return messages.JobSavings(
        job_id=str(job.job_id),
        estimated=job.estimated,
        default_batch_size=spec.default_batch_size,
        recurrences=sum(era.recurrences for era in eras),
        spent=_spent(eras),
        saved=None if known is None else _amounts(known),
        hardware=[_on_hardware(job, spec, eras, each) for each in hardware],
        weeks=_weeks(session, weeks, job),
        points=[
            messages.SavingsPoint(
                hardware=hardware.index(portion.hardware),
                trial_number=portion.last_trial,
                ended_at=portion.ended_at,
                recurrences=sum(era.recurrences for era in portion.eras),
                spent=_spent(portion.eras),
                saved=None if part is None else _plain_amounts(part),
            )
            for portion in (savings.by_number(session, job, limit=points) if points else ())
            if portion.hardware in hardware
            for part in [saved(spec, portion.eras)]
        ],
    )


def _on_hardware(
    job: Job, spec: JobSpec, eras: Sequence[Era], hardware: Hardware
) -> messages.SavedOnHardware:
    eras = [era for era in eras if era.hardware == hardware]
    known, latest = saved(spec, eras), eras[-1] if eras else None
    arms = job.ledger[hardware.key]["arms"] if eras else {}
    runs = arms.get(str(spec.default_batch_size), {}).get("runs", 0)
    one = expected(spec, latest) if latest else None
    is_carried = bool(latest and latest.expected and latest.expected.carried_from)
    return messages.SavedOnHardware(
        **asdict(hardware),
        recurrences=sum(era.recurrences for era in eras),
        spent=_spent(eras),
        expected=None if one is None else _plain_amounts(one),
        basis=None if one is None else "runs" if runs or is_carried else "estimate",
        default_runs=runs,
        saved=None if known is None else _amounts(known),
    )


@use_case(read_only=True)
def of_all_jobs(session: Session, *, weeks: int = WEEKS) -> messages.Savings:
    """Return what all jobs have saved together, and in the latest weeks; see `of_job`."""
    totals = savings.totals(session)
    all_jobs = sum(each.jobs for each in totals)
    return messages.Savings(
        jobs=all_jobs,
        unknown=all_jobs - sum(each.known for each in totals),
        since=min((each.since for each in totals if each.since), default=None),
        spent_energy_j=sum(each.spent_energy_j for each in totals),
        estimated=any(each.estimated and each.known for each in totals),
        saved=_amounts(total(each.saved for each in totals)),
        by_meter=[
            messages.SavingsOfMeter(
                estimated=each.estimated, jobs=each.known, saved=_amounts(each.saved)
            )
            for each in totals
        ],
        weeks=_weeks(session, weeks),
    )


def _weeks(session: Session, weeks: int, job: Job | None = None) -> list[messages.SavedInWeek]:
    return [
        messages.SavedInWeek(
            week=f"{datetime.fromtimestamp(number * WEEK_S - SINCE_MONDAY_S, UTC):%Y-%m-%d}",
            recurrences=recurrences,
            saved=_amounts(part),
        )
        for number, recurrences, part in (
            savings.by_week(session, weeks=weeks, job=job) if weeks else ()
        )
    ]


def _spent(eras: Iterable[Era]) -> messages.Spent:
    every = list(eras)
    return messages.Spent(
        energy_j=sum(era.energy_j for era in every),
        time_s=sum(era.time_s for era in every),
        cost=sum(era.cost for era in every),
    )


def _plain_amounts(part: Saved) -> messages.Amounts:
    return messages.Amounts(
        energy_j=_estimate(part.energy_j), time_s=_estimate(part.time_s), cost=_estimate(part.cost)
    )


def _amounts(part: Saved) -> messages.SavedAmounts:
    energy, config = part.energy_j.times(1 / J_PER_KWH), current_config()
    intensity = config.carbon_intensity
    return messages.SavedAmounts(
        **dict(_plain_amounts(part)),
        gpu_time_s=_estimate(part.gpu_time_s),
        energy_kwh=_estimate(energy),
        money=_money(energy, part.gpu_time_s),
        currency=config.currency,
        co2e_kg=None if intensity is None else _estimate(energy.times(intensity / 1000)),
    )


def _money(energy_kwh: Estimate, gpu_time_s: Estimate) -> messages.Estimate | None:
    """The price of both; the same runs decide both, so errors add up."""
    mean = price(energy_kwh.mean, gpu_time_s.mean)
    error = price(energy_kwh.error, gpu_time_s.error)
    return None if mean is None or error is None else _estimate(Estimate(mean, error))


def price(energy_kwh: float, gpu_time_s: float) -> float | None:
    """What energy and GPU time cost in money, as far as prices are set; None if none is."""
    per_kwh, per_hour = current_config().price_per_kwh, current_config().price_per_gpu_hour
    if per_kwh is None and per_hour is None:
        return None
    return energy_kwh * (per_kwh or 0.0) + gpu_time_s * (per_hour or 0.0) / 3600


def _estimate(value: Estimate) -> messages.Estimate:
    return messages.Estimate(estimate=value.mean, low=value.low, high=value.high)
