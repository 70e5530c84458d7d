"""What was saved, in the messages of the HTTP API. Units are as in `messages`."""

from __future__ import annotations

from typing import Literal

from zeus_service.api.messages import Instant, Message


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
    """What was saved; `money` and `co2e_kg` where the service knows prices and the intensity.

    Args:
        gpu_time_s: The time of each GPU, summed.
        money: The price of the energy and of the GPUs' time, in `currency`.
    """

    gpu_time_s: Estimate
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


class SavingsPoint(Message):
    """The trials that have ended since the point before on the same hardware, up to a trial number.

    A point without recurrences has failed tries only; its savings are negative.

    Args:
        hardware: The index of the hardware in the job's list.
    """

    hardware: int
    trial_number: int
    ended_at: float
    recurrences: int
    spent: Spent
    saved: Amounts | None


class SavedOnHardware(Message):
    """What a job has saved on one hardware; see `Hardware`.

    Args:
        expected: What one run of the default is expected to spend there now; null if nothing is
            known.
        basis: Whether that comes from runs of the default, there or on other hardware, now or
            before the job changed, or from the policy's estimate.
        default_runs: Runs of the default that converged there, since the job last changed.
    """

    device_model: str
    num_devices: int
    max_power_w: float
    meter: str
    estimated: bool
    recurrences: int
    spent: Spent
    expected: Amounts | None
    basis: Literal["runs", "estimate"] | None
    default_runs: int
    saved: SavedAmounts | None


class JobSavings(Message):
    """What a job has saved against its default batch size at the default power limit.

    Args:
        estimated: Whether any meter of its hardware estimates joules.
        hardware: Its parts on each hardware; the latest used comes last.
        points: The job's trials in portions.
    """

    job_id: str
    estimated: bool
    default_batch_size: int
    recurrences: int
    spent: Spent
    saved: SavedAmounts | None
    hardware: list[SavedOnHardware]
    weeks: list[SavedInWeek]
    points: list[SavingsPoint]


class SavingsOfMeter(Message):
    """What jobs have saved, by whether any of their meters estimates.

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
        since: When the first of the others was registered; null without any.
        spent_energy_j: Joules that the others have spent, which is what the default would have
            spent, less what was saved.
        estimated: Whether any part of the savings comes from meters that estimate.
        by_meter: The parts of jobs whose meters all measure, and of the others.
    """

    jobs: int
    unknown: int
    since: Instant | None
    spent_energy_j: float
    estimated: bool
    saved: SavedAmounts
    by_meter: list[SavingsOfMeter]
    weeks: list[SavedInWeek]
