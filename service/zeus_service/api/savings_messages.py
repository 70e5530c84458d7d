"""What was saved, in the messages of the HTTP API. Units are as in `messages`."""

from __future__ import annotations

from typing import Literal

from zeus_service.api.messages import Message


class Estimate(Message):
    """An estimate, and its 95 % interval."""

    estimate: float
    low: float
    high: float


class Spent(Message):
    """Joules, seconds and cost that trials have spent."""

    energy_j: float
    time_s: float
    cost: float


class Amounts(Message):
    """Estimates of joules, seconds and cost."""

    energy_j: Estimate
    time_s: Estimate
    cost: Estimate


class SavedAmounts(Amounts):
    """What was saved; `money` and `co2e_kg` where the service knows the price and the intensity."""

    energy_kwh: Estimate
    money: Estimate | None
    co2e_kg: Estimate | None


class SavedInWeek(Message):
    """What was saved in a week that began on this Monday, in UTC.

    It changes when further runs teach more about the default batch size.
    """

    week: str
    recurrences: int
    saved: SavedAmounts


class SavingsPoint(Message):
    """The trials that have ended since the point before, up to a trial number.

    A point without recurrences has failed tries only; its savings are negative.
    """

    trial_number: int
    ended_at: float
    recurrences: int
    spent: Spent
    saved: Amounts | None


class JobSavings(Message):
    """What a job has saved against its default batch size at the default power limit.

    Args:
        meter: The meter of the joules; null before the first trial.
        estimated: Whether it estimates them.
        expected: What one run of the default is expected to spend now; null if nothing is known.
        basis: Whether that comes from runs of the default, of this era or one before, or from the
            policy's estimate.
        default_runs: Runs of the default that converged, since the job last changed.
        points: The job's trials in portions.
    """

    job_id: str
    meter: str | None
    estimated: bool
    default_batch_size: int
    recurrences: int
    spent: Spent
    expected: Amounts | None
    basis: Literal["runs", "estimate"] | None
    default_runs: int
    saved: SavedAmounts | None
    weeks: list[SavedInWeek]
    points: list[SavingsPoint]


class SavingsOfMeter(Message):
    """What jobs have saved, by whether their meters estimate.

    Args:
        jobs: Jobs with an expectation of what their default spends.
    """

    estimated: bool
    jobs: int
    saved: SavedAmounts


class Savings(Message):
    """What all jobs have saved together.

    Args:
        jobs: All jobs.
        unknown: Jobs without an expectation of what their default spends: they count for nothing.
        estimated: Whether any part of the savings comes from meters that estimate.
        by_meter: The parts from meters that measure and from meters that estimate.
    """

    jobs: int
    unknown: int
    estimated: bool
    saved: SavedAmounts
    by_meter: list[SavingsOfMeter]
    weeks: list[SavedInWeek]
