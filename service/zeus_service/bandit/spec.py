"""A recurring job's specification, complete, and the hardware that its trials use.

`registration` says how a sparse specification is completed. Numbers on the wire are strict: no
strings, no booleans, no NaN, no infinity.
"""

# Without postponed annotations: SQLAlchemy reads the types of `Hardware` in `db.tables`.

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

MAX_AMOUNT = 1e15
"""Joules, seconds and watts beyond this come from a broken meter; sums of squares stay finite."""

MAX_METRIC = 1e30
"""A run whose metric is beyond this ends as `diverged`, instead of reporting it."""

MAX_INTEGER = 2**31 - 1
"""The largest value that every database stores in an integer column."""


def _whole(value: Any) -> Any:
    """Accept 1 and 1.0, not "1", true or 1.5: JSON has one kind of number."""
    if not _is_number(value) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError("must be an integer")
    return int(value)


def _real(value: Any) -> Any:
    if not _is_number(value):
        raise ValueError("must be a number")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


WHOLE = BeforeValidator(_whole)
REAL = BeforeValidator(_real)
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER), WHOLE]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_INTEGER), WHOLE]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False), REAL]
PositiveAmount = Annotated[float, Field(gt=0, le=MAX_AMOUNT, allow_inf_nan=False), REAL]
Metric = Annotated[float, Field(ge=-MAX_METRIC, le=MAX_METRIC, allow_inf_nan=False), REAL]
JOB_ID_PATTERN = "[A-Za-z0-9][A-Za-z0-9._:-]{0,254}"
"""The ids that `/api/v1` registers."""

MAX_JOB_ID = 300
AnyJobId = Annotated[
    str, Field(max_length=MAX_JOB_ID, pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f]$")
]
"""The ids that are stored, those of the Zeus project's clients among them: up to the length that
their server stores, without control characters, and without a blank at the end, which MySQL and
MariaDB do not compare."""
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]


def _ascending(values: list[int]) -> list[int]:
    if len(set(values)) != len(values):
        raise ValueError("must not repeat a batch size")
    return sorted(values)


BatchSizes = Annotated[
    list[PositiveCount],
    Field(min_length=1, max_length=128, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_ascending),
]


class JobSpec(BaseModel):
    """A recurring job.

    Args:
        higher_is_better: Whether `monitor` rises to the target. It has no default: with the
            wrong value the service would look for the worst model.
        target_metric: What its runs train to; None until it is learned from baselines, which train
            with the default batch size to completion. `learned_target` describes how.
        baseline_runs: Baselines that must complete before the target is learned.
        batch_size_scope: What a batch size counts. `global`: the samples of an optimizer step, over
            all devices. `per_device`: the samples of one device, so that every trial must use the
            same number of devices.
        early_stop: What is compared with the early-stop bound. `expected`: the cost at the next
            report, unless the target is reached; the policy derives the bound from the runs that
            converged. `spent`, the rule of the Zeus project's server: the cost so far, even if the
            target is reached; runs that failed also count for the bound.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: AnyJobId
    batch_sizes: BatchSizes
    default_batch_size: PositiveCount
    target_metric: Metric | None = None
    higher_is_better: Annotated[bool, Field(strict=True)]
    monitor: Name
    max_epochs: PositiveCount
    batch_size_scope: Literal["global", "per_device"] = "global"
    eta_knob: Annotated[float, Field(ge=0, le=1), REAL] = 0.5
    beta_knob: PositiveAmount | None = 2.0
    early_stop: Literal["expected", "spent"] = "expected"
    num_pruning_rounds: Annotated[int, Field(ge=0, le=100), WHOLE] = 2
    window_size: Annotated[int, Field(ge=0, le=1000), WHOLE] = 0
    mab_prior_mean: Annotated[float, Field(ge=-1e30, le=1e30), REAL] = 0.0
    mab_prior_precision: Amount = 0.0
    mab_num_explorations: Annotated[int, Field(ge=0, le=1000), WHOLE] = 2
    policy: Name | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1), WHOLE] | None = None
    lease_s: Annotated[float, Field(ge=1, le=31 * 86400), REAL] = 900.0
    baseline_runs: Annotated[int, Field(ge=2, le=20), WHOLE] = 3

    @field_validator("default_batch_size")
    @classmethod
    def _is_offered(cls, value: int, info: ValidationInfo) -> int:
        offered = info.data.get("batch_sizes")  # absent when it is itself invalid
        if offered is not None and value not in offered:
            raise ValueError(f"{value} is not among batch_sizes {offered}")
        return value

    def cost(self, energy_j: float, time_s: float, max_power_w: float) -> float:
        """Cost of a run in joules: `eta * energy + (1 - eta) * MaxPower * time`.

        Args:
            energy_j: Joules of the run.
            time_s: Seconds of the run.
            max_power_w: MaxPower of its hardware, in watts.

        Source: Zeus (You, Chung, Chowdhury, NSDI 2023).
        """
        return self.eta_knob * energy_j + (1 - self.eta_knob) * max_power_w * time_s

    def reached(self, metric: float) -> bool:
        """Whether a metric reaches the target, which is known."""
        assert self.target_metric is not None, "only baselines run before the target is known"
        if self.higher_is_better:
            return metric >= self.target_metric
        return metric <= self.target_metric

    def random_seed(self) -> int:
        """The seed given, or one derived from the job id, so that every choice can be replayed."""
        if self.seed is not None:
            return self.seed
        return int.from_bytes(hashlib.sha256(self.job_id.encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Hardware:
    """The devices of a trial, over all nodes, and the meter of their energy.

    Args:
        device_model: The devices' model, as the meter names it.
        num_devices: How many devices train.
        max_power_w: Sum over the devices of the highest power limit that can be set, in watts.
        meter: The meter's name. Joules of different meters cannot be compared.
        estimated: Whether the meter estimates the joules instead of measuring them.
    """

    device_model: Name
    num_devices: PositiveCount
    max_power_w: PositiveAmount
    meter: Name
    estimated: Annotated[bool, Field(strict=True)] = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The hardware that these values describe, among others."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def key(self) -> str:
        """A text that no other hardware has."""
        power_w, estimated = self.max_power_w, self.estimated
        return json.dumps([self.device_model, self.num_devices, power_w, self.meter, estimated])


def devices_for_each(there: str, here: str) -> float:
    """How many devices the hardware with one key has for each of another's, if of one model.

    For other models it is 1.
    """
    (model, number, *_), (own_model, own_number, *_) = json.loads(there), json.loads(here)
    return number / own_number if model == own_model else 1.0
