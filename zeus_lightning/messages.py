"""The messages between a training run and the service, version 1, as dataclasses.

Times are in seconds, energies and costs in joules, powers in watts. Every field is a plain JSON
value, and none is NaN or infinite. A run is stopped at its `cost_bound`, unless that is None. Its
trial is lost after `lease_s` without a report or a heartbeat; its `outcome` is None while it runs.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, get_args

Why = Literal["explore", "exploit", "concurrent", "fallback", "control", "baseline"]
Failure = Literal["early_stopped", "not_converged", "diverged", "out_of_memory"]
"""Outcomes after which the batch size has failed."""

Outcome = Literal["converged", Failure, "interrupted", "errored", "withdrawn", "lost", "completed"]

FAILED: tuple[Outcome, ...] = get_args(Failure)

MAX_METRIC = 1e30
"""Largest absolute value of a metric or target; a run with a larger metric has diverged."""

MAX_INTEGER = 2**31 - 1
"""The service stores no larger integer."""

MAX_REASON = 1000
"""Largest length of the reason of an end, in characters."""


def shortest_decimal(number: Any) -> float:
    """A number as it is printed, such as 0.95 for the float32 that is exactly 0.949999988.

    So a float32 metric of 0.95 reaches a target of 0.95. Takes numbers of numpy and torch.
    """
    if not hasattr(number, "item"):
        return float(number)
    value, kind = number.item(), str(number.dtype).removeprefix("torch.")
    if kind in ("float16", "float32"):
        import numpy as np  # the command line, which has no such numbers, does without

        value = str(np.dtype(kind).type(value))
    return float(value)


def known_fields(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    """The members of a JSON object that are fields of a dataclass of this version."""
    names = {each.name for each in fields(cls)}
    return {name: value for name, value in data.items() if name in names}


class _Message:
    """A dataclass that is sent as a JSON object."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object to send."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from a JSON object, ignoring members that are unknown to this version."""
        return cls(**known_fields(cls, data))


@dataclass(frozen=True, kw_only=True)
class JobSpec(_Message):
    """A recurring job; `ZeusBSOCallback` describes the fields that are arguments of its own.

    Args:
        batch_sizes: Ascending; `default_batch_size` is one of them.
        target_metric: None: the service learns it from baselines.
        monitor: Empty: only a registered job has one.
        max_epochs: Below 1: only a registered job has it.
        higher_is_better: Whether `monitor` rises to the target; if not, it falls to it. It says
            nothing if it is omitted: only a registered job has it.
        baseline_runs: Baselines that must complete before the target is learned, 2 to 20.
        suggested: Names of the fields that were read from the program: where the registered job has
            another value, the service takes that.
        omitted: Names of the fields that were not given: the service takes the registered values,
            or else its own defaults, which are those here.
    """

    job_id: str
    batch_sizes: list[int]
    default_batch_size: int
    target_metric: float | None = None
    higher_is_better: bool
    monitor: str
    max_epochs: int
    batch_size_scope: Literal["global", "per_device"] = "global"
    eta_knob: float = 0.5
    beta_knob: float | None = 2.0
    num_pruning_rounds: int = 2
    window_size: int = 0
    policy: str | None = None
    seed: int | None = None
    baseline_runs: int = 3
    suggested: list[str] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)

    def registration(self) -> dict[str, Any]:
        """The JSON object that registers it."""
        values = self.to_json()
        for name in values.pop("omitted"):
            del values[name]
        suggested = {name: values.pop(name) for name in values.pop("suggested")}
        return {**values, "suggested": suggested}

    def divisor(self, share: int) -> int:
        """What a batch size is divided by for one device, where a global one has `share` parts."""
        return 1 if self.batch_size_scope == "per_device" else share

    @property
    def mode(self) -> Literal["min", "max"]:
        """Whether the metric rises or falls to the target, as the callback's `mode`."""
        return "max" if self.higher_is_better else "min"

    def is_reached_by(self, metric: float) -> bool:
        """Whether a value of the monitored metric reaches the target; false for NaN.

        It is also false while the target is unknown, and where nothing has said whether the metric
        should rise or fall.
        """
        if self.target_metric is None or "higher_is_better" in self.omitted:
            return False
        if self.higher_is_better:
            return metric >= self.target_metric
        return metric <= self.target_metric


@dataclass(frozen=True, kw_only=True)
class Hardware(_Message):
    """What a trial trains on, and what measures its energy.

    Args:
        device_model: The devices' model, as the meter names it.
        num_devices: Devices that train, over all nodes.
        max_power_w: Sum over the devices of the highest settable power limit.
        meter: Name of the energy meter; figures of different meters cannot be compared.
        estimated: Whether the meter estimates the joules.
    """

    device_model: str
    num_devices: int
    max_power_w: float
    meter: str
    estimated: bool


@dataclass(frozen=True, kw_only=True)
class TrialStart(_Message):
    """The service's answer to a start: the batch size to train with, and why.

    Args:
        trial_number: Counts the job's trials from 1.
        generation: Random, of this start: numbers are used again after a job was deleted.
        reason: Why the policy chose the batch size, in one sentence.
        target_metric: What this trial trains to; None for a baseline.
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

    @property
    def is_chosen(self) -> bool:
        """Whether the batch size was chosen; a control trial or a baseline has the default.

        Another run after a chosen one fails may get another batch size.
        """
        return self.why not in ("control", "baseline")


@dataclass(frozen=True, kw_only=True)
class TrialStatus(_Message):
    """A trial's status at the service.

    Args:
        reason: Why it ended, in one sentence.
        reports: Sequence number of its last report, 0 before any.
    """

    trial_number: int
    generation: str
    batch_size: int
    outcome: Outcome | None
    reason: str
    reports: int


@dataclass(frozen=True, kw_only=True)
class Report(_Message):
    """The measurements of a run up to one validation end.

    Args:
        sequence: Counts the trial's reports from 1; makes sending one again harmless.
        epoch: Training epochs completed.
        time_s: Seconds since training began, validation included.
        energy_j: Joules since training began, over all devices.
        metric: The monitored metric at this validation, at most `MAX_METRIC` in size.
        power_limit_w: The GPUs' power limit at this validation; None if none is known.
        default_power_limit_w: Their default power limit; None if none is known.
        host_load: Load average of the host per core, as the mean over the trial's reports so far:
            above 1, processes wait for cores.
    """

    sequence: int
    epoch: int
    time_s: float
    energy_j: float
    metric: float
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    host_load: float | None = None

    def cost(self, job: JobSpec, hardware: Hardware) -> float:
        """The trial's cost so far, in joules (Zeus: You, Chung and Chowdhury, NSDI 2023)."""
        time_j = hardware.max_power_w * self.time_s
        return job.eta_knob * self.energy_j + (1 - job.eta_knob) * time_j


@dataclass(frozen=True, kw_only=True)
class Decision(_Message):
    """What follows from a report: the service's answer, or this process's own without it.

    Args:
        decision: Whether training continues, or stops: the target is reached, or the batch size has
            failed.
        outcome: How the trial ended; None while it runs, and without a trial.
        cost: Joules so far, `eta * energy_j + (1 - eta) * max_power_w * time_s`; None without the
            service's answer.
        reason: Why the trial ended, in one sentence.
    """

    decision: Literal["continue", "stop"] = "continue"
    outcome: Outcome | None = None
    cost: float | None = None
    cost_bound: float | None = None
    reason: str = ""

    @property
    def stop(self) -> bool:
        """Whether training stops."""
        return self.decision == "stop"
