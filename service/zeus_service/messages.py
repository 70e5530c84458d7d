"""Requests and responses of the service, version 1 of the wire.

Times are in seconds, energies and costs in joules, powers in watts, instants in Unix seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from zeus_service.outcomes import Outcome
from zeus_service.policies.base import ArmEstimate, Why
from zeus_service.spec import (
    REAL,
    Amount,
    Count,
    JobSpec,
    Metric,
    Name,
    PositiveAmount,
    PositiveCount,
)

Reason = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]


Instant = Annotated[float, Field(ge=0, le=253_402_214_400)]
"""Unix seconds, up to the year 9999."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Empty(_Message):
    """The body of a request without fields: `{}`."""


class Report(_Message):
    """What a run measured from the start of training up to one validation end."""

    sequence: PositiveCount
    epoch: Count
    time_s: Amount
    energy_j: Amount
    metric: Metric


class Decision(_Message):
    """The answer to a report."""

    decision: Literal["continue", "stop"]
    outcome: Outcome | None
    cost: float
    cost_bound: float | None
    reason: str


class TrialEnd(_Message):
    """A run ends its own trial."""

    outcome: Literal[
        "not_converged", "diverged", "out_of_memory", "interrupted", "errored", "withdrawn"
    ]
    reason: Reason = ""


class TrialStart(_Message):
    """A trial was started: train with this batch size, and send `generation` with each call."""

    job_id: str
    trial_number: int
    generation: str
    batch_size: int
    why: Why
    reason: str
    cost_bound: float | None
    lease_s: float


class Lease(_Message):
    """Seconds from now after which the trial counts as lost."""

    lease_s: float


class Trial(_Message):
    """One run of a job; `reports` is the sequence number of its last report, 0 before any."""

    job_id: str
    trial_number: int
    generation: str
    batch_size: int
    why: Why
    outcome: Outcome | None
    reason: str
    started_at: Instant
    ended_at: Instant | None
    lease_expires_at: Instant
    reports: int
    epoch: int
    time_s: float
    energy_j: float
    metric: float | None
    cost: float


class JobSummary(_Message):
    """A job in a list. One whose row cannot be read has the stage `broken`, and zeros."""

    job_id: str
    stage: str
    best_batch_size: int | None
    trials: int
    updated_at: Instant


class Job(JobSummary):
    """A job with its specification and the policy's beliefs."""

    spec: JobSpec
    cost_bound: float | None
    arms: list[ArmEstimate]
    outcomes: dict[str, int]


class JobList(_Message):
    """A page of jobs, ordered by id."""

    jobs: list[JobSummary]


class TrialList(_Message):
    """A page of a job's trials, ordered by number; `broken`: those that cannot be read."""

    trials: list[Trial]
    broken: list[int] = []


class Health(_Message):
    """The service answers."""

    status: Literal["ok"]
    version: str


class PowerPoint(_Message):
    """Energy (J, over all GPUs) and time (s) of one training batch at one power limit (W)."""

    limit_w: PositiveCount
    energy_j: PositiveAmount
    time_s: PositiveAmount


class MeasuredWindow(PowerPoint):
    """One measurement of a limit, and what it was expected to save and to cost, in windows."""

    saves: Amount | None = None
    costs: Amount | None = None


def _text(value: Any) -> Any:
    """Refuse a number, which pydantic would read as seconds since 1970."""
    if isinstance(value, int | float):
        raise ValueError("must be a date and time, such as 2026-01-31T12:00:00Z")
    return value


class PowerProfile(_Message):
    """Measurements for a batch size on a GPU model, and the power limit chosen from them."""

    device_model: Name
    driver: Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]
    num_devices: PositiveCount
    batch_size: PositiveCount
    points: Annotated[list[PowerPoint], Field(min_length=1, max_length=500)]
    chosen_w: PositiveCount
    selector: Name
    eta_knob: Annotated[float, Field(ge=0, le=1), REAL]
    max_power_w: PositiveAmount
    search: Name
    measured_at: Annotated[AwareDatetime, BeforeValidator(_text)]
    windows: Annotated[list[MeasuredWindow], Field(max_length=500)] = []

    @model_validator(mode="after")
    def _is_consistent(self) -> PowerProfile:
        limits = [point.limit_w for point in self.points]
        if len(set(limits)) != len(limits):
            raise ValueError("points must not repeat a limit_w")
        if self.chosen_w not in limits:
            raise ValueError(f"chosen_w {self.chosen_w} is not the limit_w of a point")
        return self


class PowerProfileList(_Message):
    """A job's power profiles, ordered by batch size."""

    profiles: list[PowerProfile]
