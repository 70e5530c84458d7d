"""What a training run and the service say to each other: the wire's dataclasses, version 1.

Times are in seconds, energies in joules, powers in watts. Every field is a plain JSON value, and
none is NaN or infinite.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

Why = Literal["explore", "exploit", "concurrent"]
Outcome = Literal[
    "converged",
    "early_stopped",
    "not_converged",
    "diverged",
    "out_of_memory",
    "interrupted",
    "errored",
    "withdrawn",
    "lost",
]

MAX_METRIC = 1e30
"""The service takes no metric or target beyond this: such a run has diverged."""


class _Message:
    """A dataclass that is a JSON object on the wire."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object to send."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from a JSON object; members this version does not know are ignored."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(frozen=True, kw_only=True)
class JobSpec(_Message):
    """A recurring job: what is to be reached, with which batch sizes, on which devices.

    Args:
        job_id: The same id makes the runs one recurring job. 1 to 255 letters, digits and `._:-`,
            starting with a letter or digit.
        batch_sizes: Global batch sizes to choose from, ascending.
        default_batch_size: Where exploration starts; one of `batch_sizes`.
        target_metric: Value of `monitor` that ends the training.
        higher_is_better: Whether `monitor` is to rise to the target or to fall to it.
        monitor: Name of the validation metric.
        max_epochs: Epochs after which a run that has not reached the target has failed.
        max_power_w: Sum over the devices of the highest settable power limit.
        num_devices: Devices that train, over all nodes.
        device_model: Their model, as the meter names it.
        meter: Name of the energy meter. Figures of different meters cannot be compared.
        eta_knob: Weight of energy against time in the cost, in [0, 1].
        beta_knob: Early-stop bound as a multiple of the best cost; None: never stop early.
        num_pruning_rounds: Rounds of exploration before Thompson sampling.
        window_size: Observations of a batch size that count, latest first; 0: all.
        policy: Name of the policy, None: the one the service prefers.
        seed: Of the policy's random choices; None: derived from the job id.
        lease_s: A trial not heard of for this long is lost.
    """

    job_id: str
    batch_sizes: list[int]
    default_batch_size: int
    target_metric: float
    higher_is_better: bool
    monitor: str
    max_epochs: int
    max_power_w: float
    num_devices: int
    device_model: str
    meter: str
    eta_knob: float = 0.5
    beta_knob: float | None = 2.0
    num_pruning_rounds: int = 2
    window_size: int = 0
    policy: str | None = None
    seed: int | None = None
    lease_s: float = 900.0


@dataclass(frozen=True, kw_only=True)
class TrialStart(_Message):
    """The service's answer to a start: which batch size to train with, and why.

    Args:
        job_id: The job.
        trial_number: Counts the job's trials from 1.
        batch_size: Global batch size to train with.
        why: `explore`, `exploit` or `concurrent`.
        reason: The same for a person, in one sentence.
        cost_bound: Cost in joules past which the run will be stopped; None: no bound.
        lease_s: The trial is lost when nothing is heard of it for this long.
    """

    job_id: str
    trial_number: int
    batch_size: int
    why: Why
    reason: str
    cost_bound: float | None
    lease_s: float


@dataclass(frozen=True, kw_only=True)
class TrialStatus(_Message):
    """What the service knows of a trial.

    Args:
        trial_number: Counts the job's trials from 1.
        batch_size: Global batch size it was started with.
        outcome: How it ended, None while it runs.
        reason: Why, in one sentence.
        reports: Sequence number of its last report, 0 before any.
    """

    trial_number: int
    batch_size: int
    outcome: Outcome | None
    reason: str
    reports: int


@dataclass(frozen=True, kw_only=True)
class Report(_Message):
    """What a run measured up to one validation end.

    Args:
        sequence: Counts the trial's reports from 1; makes sending one again harmless.
        epoch: Training epochs completed.
        time_s: Since training began, validation included.
        energy_j: Likewise, over all devices.
        metric: The monitored metric at this validation, at most `MAX_METRIC` in size.
    """

    sequence: int
    epoch: int
    time_s: float
    energy_j: float
    metric: float


@dataclass(frozen=True, kw_only=True)
class Decision(_Message):
    """The service's answer to a report.

    Args:
        decision: `continue` or `stop`.
        outcome: How the trial ended, None while it goes on.
        cost: `eta * energy_j + (1 - eta) * max_power_w * time_s` of the report, in joules.
        cost_bound: Cost in joules past which the run will be stopped; None: no bound.
        reason: For a person, in one sentence.
    """

    decision: Literal["continue", "stop"]
    outcome: Outcome | None
    cost: float
    cost_bound: float | None
    reason: str
