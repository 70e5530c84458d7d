"""What was saved compared with the defaults: messages of the HTTP API, and what they say.

Units are as in `messages`. Pages and commands show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer_group

from zeus_service.api.messages import Instant, Message
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.config import current_config
from zeus_service.db import jobs, savings
from zeus_service.db.session import use_case
from zeus_service.db.tables import Job
from zeus_service.savings.ledger import Era
from zeus_service.savings.report import J_PER_KWH, Amounts, Estimate, expected, saved

WEEKS = 13
"""How many of the latest weeks are shown, unless another number is asked for."""


class Spent(Message):
    """Joules, seconds and cost that trials have spent."""

    energy_j: float
    time_s: float
    cost: float


@dataclass(frozen=True)
class SavedAmounts(Amounts):
    """What was saved; `money` and `co2e_kg` are null without prices and a carbon intensity.

    Args:
        money: The price of the energy and of the GPUs' time, in `currency`.
    """

    energy_kwh: Estimate
    money: Estimate | None
    currency: str
    co2e_kg: Estimate | None


class SavedInWeek(Message):
    """What was saved in a week that began on this Monday, in UTC.

    It changes when further runs teach more about the default batch size.
    """

    week: str
    recurrences: int
    saved: SavedAmounts


@dataclass(frozen=True, kw_only=True)
class SavedOnHardware(Hardware):
    """What a job has saved on one kind of hardware.

    Args:
        expected: What one run of the default is expected to spend there now; null if nothing is
            known.
        default_runs: Runs of the default that converged there, since the job last changed.
    """

    recurrences: int
    spent: Spent
    expected: Amounts | None
    default_runs: int
    saved: SavedAmounts | None


class JobSavings(Message):
    """What a job has saved compared with its default batch size at the default power limit.

    Args:
        estimated: Whether any meter of its hardware estimates joules.
        hardware: Its parts on each hardware; the latest used comes last.
    """

    job_id: str
    estimated: bool
    default_batch_size: int
    recurrences: int
    spent: Spent
    saved: SavedAmounts | None
    hardware: list[SavedOnHardware]


class Savings(Message):
    """What all jobs have saved together.

    Args:
        jobs: All jobs.
        unknown: Jobs without an expectation of what their default spends: they count for nothing.
        since: When the first of the others was registered; null without any.
        spent_energy_j: Joules that the others have spent, which is what the default would have
            spent, less what was saved.
        estimated: Whether any part of the savings comes from meters that estimate.
    """

    jobs: int
    unknown: int
    since: Instant | None
    spent_energy_j: float
    estimated: bool
    saved: SavedAmounts
    weeks: list[SavedInWeek]


@use_case(read_only=True)
def job_savings(session: Session, job_id: str) -> JobSavings:
    """Return what a job has saved.

    Raises:
        NotFound: No such job.
    """
    return _job_savings(session, jobs.get(session, job_id))


@use_case(read_only=True)
def largest_savers(session: Session, limit: int) -> list[tuple[float, JobSavings]]:
    """Return the jobs that have saved most energy, and the joules that each has spent for it."""
    query = select(Job).where(Job.job_id.is_not(None), Job.saved_energy_j > 0)
    query = query.order_by(Job.saved_energy_j.desc()).limit(limit).options(undefer_group("state"))
    return [(job.spent_energy_j, _job_savings(session, job)) for job in session.scalars(query)]


def _job_savings(session: Session, job: Job) -> JobSavings:
    spec, eras = jobs.specification(job), savings.load_eras(session, job)
    known = saved(eras)
    return JobSavings(
        job_id=str(job.job_id),
        estimated=job.estimated,
        default_batch_size=spec.default_batch_size,
        recurrences=sum(era.recurrences for era in eras),
        spent=_spent(eras),
        saved=None if known is None else _amounts(known),
        hardware=[_on_hardware(job, spec, eras, Hardware.of(each)) for each in job.hardware],
    )


def _on_hardware(
    job: Job, spec: JobSpec, eras: Sequence[Era], hardware: Hardware
) -> SavedOnHardware:
    eras = [era for era in eras if era.hardware == hardware]
    known, latest = saved(eras), eras[-1] if eras else None
    arms = job.ledger[hardware.key]["arms"] if eras else {}
    runs = arms.get(str(spec.default_batch_size), {}).get("runs", 0)
    return SavedOnHardware(
        **asdict(hardware),
        recurrences=sum(era.recurrences for era in eras),
        spent=_spent(eras),
        expected=expected(latest) if latest else None,
        default_runs=runs,
        saved=None if known is None else _amounts(known),
    )


@use_case(read_only=True)
def all_savings(session: Session, *, weeks: int = WEEKS) -> Savings:
    """Return what all jobs have saved together, and in the latest weeks.

    Args:
        session: In a transaction.
        weeks: How many weeks, the current one included. Without any, it takes no pass over trials.
    """
    total, amounts = savings.total(session)
    return Savings(
        jobs=total.jobs,
        unknown=total.jobs - total.known,
        since=total.since,
        spent_energy_j=total.spent_energy_j,
        estimated=total.estimated > 0,
        saved=_amounts(amounts),
        weeks=[
            SavedInWeek(
                week=monday.isoformat(),
                recurrences=recurrences,
                saved=_amounts(part),
            )
            for monday, recurrences, part in (savings.by_week(session, weeks) if weeks else ())
        ],
    )


def _spent(eras: Iterable[Era]) -> Spent:
    every = list(eras)
    return Spent(
        energy_j=sum(era.energy_j for era in every),
        time_s=sum(era.time_s for era in every),
        cost=sum(era.cost for era in every),
    )


def _amounts(part: Amounts) -> SavedAmounts:
    energy, config = part.energy_j.times(1 / J_PER_KWH), current_config()
    intensity = config.carbon_intensity
    return SavedAmounts(
        **vars(part),
        energy_kwh=energy,
        money=_money(energy, part.gpu_time_s),
        currency=config.currency,
        co2e_kg=None if intensity is None else energy.times(intensity / 1000),
    )


def _money(energy_kwh: Estimate, gpu_time_s: Estimate) -> Estimate | None:
    """The price of both; the same runs decide both, so errors add up."""
    mean = price(energy_kwh.estimate, gpu_time_s.estimate)
    error = price(energy_kwh.error, gpu_time_s.error)
    return None if mean is None or error is None else Estimate.of(mean, error)


def price(energy_kwh: float, gpu_time_s: float) -> float | None:
    """What energy and GPU time cost in money, as far as prices are set; None if none is."""
    per_kwh, per_hour = current_config().price_per_kwh, current_config().price_per_gpu_hour
    if per_kwh is None and per_hour is None:
        return None
    return energy_kwh * (per_kwh or 0.0) + gpu_time_s * (per_hour or 0.0) / 3600
