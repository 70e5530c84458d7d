"""Jobs of the service, for tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import NullPool, create_engine, update
from zeus_service import registration
from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import Choice, Observation, Policy, State, Why
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import Hardware, JobSpec
from zeus_service.bandit.stopping import Report
from zeus_service.config import Config
from zeus_service.db.tables import Job, Trial

LEARNING = {name: policy for name, policy in POLICIES.items() if name != DefaultPolicy.name}
"""The policies that choose by what they have observed."""


HARDWARE = Hardware("Fake GPU", 1, max_power_w=100.0, meter="nvml")
OTHER = Hardware("Other GPU", 2, max_power_w=500.0, meter="nvml")
START = {"hardware": asdict(HARDWARE)}
"""The body that starts a trial on the first."""


@dataclass
class PastTrial:
    """A trial as `bandit.fold` folds it: it runs while `outcome` is None; the cost is in joules."""

    batch_size: int
    why: Why
    outcome: Outcome | None = None
    cost: float = 0.0
    epoch: int = 1
    hardware: Hardware = HARDWARE


def next_choice(
    policy: Policy,
    job: JobSpec,
    state: State,
    rng: np.random.Generator,
    hardware: Hardware = HARDWARE,
) -> Choice:
    """The policy's choice for a trial that can use every batch size."""
    return policy.next_batch_size(job, state, hardware, rng, job.batch_sizes)


def observation(
    choice: Choice, result: Outcome | None, cost: float, hardware: Hardware = HARDWARE
) -> Observation:
    """The end of a trial of one epoch."""
    return Observation(choice, result, cost, epochs=1, hardware=hardware)


def spec_json(**changes: Any) -> dict[str, Any]:
    """A valid specification as JSON, with changes."""
    return {
        "job_id": "job",
        "batch_sizes": [8, 16, 32, 64, 128],
        "default_batch_size": 32,
        "target_metric": 0.9,
        "monitor": "val_acc",
        "higher_is_better": True,
        "max_epochs": 10,
        **changes,
    }


def spec(**changes: Any) -> JobSpec:
    """A valid specification, resolved as the service stores it."""
    return JobSpec.model_validate(spec_json(**{"policy": "zeus", "seed": 1, **changes}))


def register(*, hardware: Hardware | None = HARDWARE, **changes: Any) -> tuple[Job, bool]:
    """Register a job with a valid specification, with changes, in the application's context."""
    given = JobSpec.model_validate(spec_json(**changes))
    values = given.model_dump(include=given.model_fields_set - {"job_id"})
    return registration.register_job(given.job_id, values, suggested={}, hardware=hardware)


def let_leases_expire(database_url: str) -> None:
    """Move the end of every trial's lease into the past, in place of waiting for it."""
    engine = create_engine(Config(database_url=database_url).database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(update(Trial).values(lease_expires_at=1.0))


def report(sequence: int = 1, **changes: Any) -> Report:
    """A report of 1 s, 1 J and a metric short of the target for each epoch, with changes."""
    figures = {"epoch": sequence, "time_s": float(sequence), "energy_j": float(sequence)}
    return Report(**{"sequence": sequence, "metric": 0.1, **figures, **changes})
