"""What the tests of figures plot."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from service.jobs import HARDWARE, spec
from zeus_service.api.messages import Job, OnHardware
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.bandit.spec import Hardware


def row(**values: Any) -> Any:
    base = {
        "trial_number": 1,
        "sequence": 1,
        "batch_size": 32,
        "outcome": "converged",
        "cost": 2000.0,
        "hardware": HARDWARE,
    }
    return SimpleNamespace(**{**base, **values})


def on_hardware(hardware: Hardware = HARDWARE, **changes: Any) -> OnHardware:
    arms = [
        ArmEstimate(size, 1, 1000.0 * size, 100.0 * size, "alive") for size in spec().batch_sizes
    ]
    known = {"best_batch_size": 8, "cost_bound": 20_000.0, "arms": arms}
    return OnHardware(**asdict(hardware), **{**known, **changes})


def job(**changes: Any) -> Job:
    values = {
        "job_id": "job",
        "state": "learning",
        "best_batch_size": 8,
        "trials": 3,
        "updated_at": 0.0,
        "spec": spec(),
        "hardware": [on_hardware()],
        "target_metric": 0.9,
        "completed_baselines": 0,
        "next_trial": None,
    }
    return Job(**{**values, **changes})
