"""Jobs, trials and records of trials, with fields that a test may choose."""

from __future__ import annotations

from typing import Any

from zeus_lightning.messages import Hardware, JobSpec, Report, TrialStart
from zeus_lightning.run.record import TrialRecord


def job_spec(**fields: Any) -> JobSpec:
    """A job."""
    defaults: dict[str, Any] = {
        "job_id": "job",
        "batch_sizes": [8, 16],
        "default_batch_size": 8,
        "target_metric": 0.9,
        "higher_is_better": True,
        "monitor": "val_acc",
        "max_epochs": 10,
    }
    return JobSpec(**(defaults | fields))


def hardware(**fields: Any) -> Hardware:
    """What a trial trains on."""
    defaults: dict[str, Any] = {"device_model": "test", "num_devices": 1, "max_power_w": 100.0}
    return Hardware(**(defaults | {"meter": "test", "estimated": False} | fields))


def trial_start(**fields: Any) -> TrialStart:
    """The answer to a start."""
    defaults: dict[str, Any] = {
        "job_id": "job",
        "trial_number": 1,
        "generation": "of-a-test",
        "batch_size": 8,
        "why": "explore",
        "reason": "it is the default",
        "cost_bound": None,
        "lease_s": 900.0,
        "target_metric": 0.9,
    }
    return TrialStart(**(defaults | fields))


def report(sequence: int = 1, **fields: Any) -> Report:
    """A report."""
    defaults: dict[str, Any] = {
        "sequence": sequence,
        "epoch": sequence,
        "time_s": 1.0 * sequence,
        "energy_j": 2.0 * sequence,
        "metric": 0.5,
    }
    return Report(**(defaults | fields))


def record(**fields: Any) -> TrialRecord:
    """The record of a trial."""
    defaults: dict[str, Any] = {
        "job": job_spec(),
        "trial": trial_start(),
        "hardware": hardware(),
    }
    made = TrialRecord(**(defaults | fields))
    if made.report is not None:
        made.cost_j = made.report.cost(made.job, made.hardware)
    return made
