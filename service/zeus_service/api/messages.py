"""Requests and responses of the HTTP API, version 1, made from what the use cases return.

Times are in seconds, energies and costs in joules, powers in watts, instants in Unix seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    create_model,
)

from zeus_service.bandit.fold import mark_passed_over
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import ArmEstimate, Why
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import (
    JOB_ID_PATTERN,
    REAL,
    Hardware,
    JobSpec,
    Name,
    PositiveAmount,
    PositiveCount,
)
from zeus_service.db import jobs, tables
from zeus_service.db.queries import JobState

Reason = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]


Instant = Annotated[float, Field(ge=0, le=253_402_214_400)]
"""Unix seconds, up to the year 9999."""


class Message(BaseModel):
    """A JSON object; unknown members are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Empty(Message):
    """The body of a request without fields: `{}`."""


_optional: dict[str, Any] = {
    name: (
        field.rebuild_annotation() | None,
        Field(None, json_schema_extra=field.json_schema_extra),
    )
    for name, field in JobSpec.model_fields.items()
    if name != "job_id"
}
_Fields: Any = create_model("_Fields", __base__=Message, **_optional)


class SparseSpec(_Fields):  # type: ignore[misc] # mypy cannot see a class that is computed
    """Fields of a job's specification, any of which may be absent or null.

    A `beta_knob` of null is a value: no early stopping.
    """

    def values(self) -> dict[str, Any]:
        """The fields that have a value."""
        return {
            name: value
            for name in self.model_fields_set & _optional.keys()
            if (value := getattr(self, name)) is not None or name == "beta_knob"
        }


def _path_segment(job_id: str) -> str:
    if re.fullmatch(JOB_ID_PATTERN, job_id) is None:
        raise ValueError(
            "must be 1 to 255 letters, digits and ._:-, starting with a letter or digit"
        )
    return job_id


class Registration(SparseSpec):
    """A recurring job, whose id needs no escaping in a path.

    A field without a value takes the registered one, else the suggestion, else the default.

    Args:
        suggested: What the client read from its program: never a conflict with the registered job.
    """

    job_id: Annotated[
        str,
        Field(json_schema_extra={"pattern": f"^{JOB_ID_PATTERN}$", "maxLength": 255}),
        AfterValidator(_path_segment),
    ]
    suggested: SparseSpec = SparseSpec()


class NewTrial(Message):
    """What a start asks for.

    Args:
        hardware: What the trial uses.
        multiple_of: What its batch size is divided by: the number of devices, times
            accumulate_grad_batches. 1 if batch sizes are per device.
        control: Train with the default batch size, without early stopping.
    """

    hardware: Hardware
    multiple_of: PositiveCount = 1
    control: Annotated[bool, Field(strict=True)] = False


_Ending = Literal["interrupted", "errored", "withdrawn", "completed"]


class TrialEnd(Message):
    """A run ends its own trial; `completed` ends a baseline, whose training has ended by itself."""

    outcome: Literal["not_converged", "diverged", "out_of_memory", _Ending]
    reason: Reason = ""


class TrialStart(Message):
    """A trial was started: train with this batch size, and send `generation` with each call.

    Args:
        target_metric: What it trains to; null for a baseline, which trains to completion.
    """

    job_id: str
    trial_number: int
    generation: str
    batch_size: int
    why: Why
    reason: str
    cost_bound: float | None
    lease_s: float
    target_metric: float | None

    @classmethod
    def of(cls, job: tables.Job, trial: tables.Trial) -> Self:
        """Describe the start of a job's trial."""
        names = ("trial_number", "generation", "batch_size", "why")
        return cls(
            job_id=str(job.job_id),
            **{name: getattr(trial, name) for name in names},
            reason=trial.start_reason,
            cost_bound=trial.start_cost_bound,
            lease_s=job.spec["lease_s"],
            target_metric=None if trial.why == "baseline" else job.spec["target_metric"],
        )


class Lease(Message):
    """Seconds from now after which the trial counts as lost."""

    lease_s: float


class Trial(Message):
    """One run of a job; `reports` is the sequence number of its last report, 0 before any.

    Args:
        power_limit_w: Mean power limit over its time; null if a report had none.
        default_power_limit_w: The GPUs' default limit, from its last report.
        host_load: The host load of its last report: above 1, processes waited for cores.
    """

    job_id: str
    trial_number: int
    generation: str
    batch_size: int
    hardware: Hardware
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
    power_limit_w: float | None
    default_power_limit_w: float | None
    host_load: float | None

    @classmethod
    def of(cls, job_id: str, trial: tables.Trial) -> Self:
        """Describe a trial of a job."""
        values = {name: getattr(trial, name) for name in cls.model_fields if name != "job_id"}
        return cls(job_id=job_id, **values)


class JobSummary(Message):
    """A job in a list; its best batch size is the best on the latest hardware."""

    job_id: str
    state: JobState
    best_batch_size: int | None
    trials: int
    updated_at: Instant

    @classmethod
    def of(cls, job: tables.Job, state: JobState) -> Self:
        """Describe a job."""
        names = ("job_id", "best_batch_size", "trials", "updated_at")
        return cls(state=state, **{name: getattr(job, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class OnHardware(Hardware):
    """Hardware that a job has used, and what is known of the job there.

    Args:
        cost_bound: Early-stopping threshold in joules; null without one.
        arms: The policy's estimates of all batch sizes there.
    """

    best_batch_size: int | None
    cost_bound: float | None
    arms: list[ArmEstimate]

    def arm(self, batch_size: int | None) -> ArmEstimate | None:
        """The estimate of a batch size."""
        return next((arm for arm in self.arms if arm.batch_size == batch_size), None)


class NextTrial(Message):
    """What a start on the latest hardware would get now, and why.

    Args:
        batch_size: Null if every batch size has failed.
    """

    batch_size: int | None
    reason: str


class Job(JobSummary):
    """A job with its specification and the policy's estimates.

    Args:
        next_trial: Null before the first start.
        hardware: All hardware that it has used; the latest comes last.
        target_metric: What its runs train to, given or learned; null until it is known.
        completed_baselines: Runs with the default batch size that have trained to completion, from
            which a target is learned.
    """

    spec: JobSpec
    target_metric: float | None
    completed_baselines: int
    next_trial: NextTrial | None
    hardware: list[OnHardware]

    @classmethod
    def with_estimates(
        cls, job: tables.Job, state: JobState, next_choice: tuple[int | None, str] | None
    ) -> Self:
        """Describe what `optimizer.describe_job` returned."""
        spec = jobs.specification(job)
        policy = policy_of(spec)
        return cls(
            **JobSummary.of(job, state).model_dump(),
            spec=spec,
            target_metric=spec.target_metric,
            completed_baselines=job.completed_baselines,
            next_trial=next_choice and NextTrial(batch_size=next_choice[0], reason=next_choice[1]),
            hardware=[
                OnHardware(
                    **each,
                    arms=mark_passed_over(
                        policy.describe(spec, job.state, Hardware.of(each)), job.inconclusive
                    ),
                )
                for each in job.hardware
            ],
        )


class JobList(Message):
    """A page of jobs, ordered by id."""

    jobs: list[JobSummary]


class TrialList(Message):
    """A page of a job's trials, ordered by number."""

    trials: list[Trial]


class PowerPoint(Message):
    """Energy (J, over all GPUs) and time (s) of one training batch at one power limit (W)."""

    limit_w: PositiveCount
    energy_j: PositiveAmount
    time_s: PositiveAmount


class PowerProfile(Message):
    """Measurements for a batch size on some GPUs, and the power limit chosen from them."""

    device_model: Name
    num_devices: PositiveCount
    batch_size: PositiveCount
    points: Annotated[list[PowerPoint], Field(min_length=1, max_length=500)]
    chosen_w: PositiveCount
    selector: Name
    eta_knob: Annotated[float, Field(ge=0, le=1), REAL]
    max_power_w: PositiveAmount
    measured_at: AwareDatetime


class PowerProfileList(Message):
    """A job's power profiles, ordered by batch size."""

    profiles: list[PowerProfile]


class Health(Message):
    """The service answers."""

    status: Literal["ok"]
    version: str
