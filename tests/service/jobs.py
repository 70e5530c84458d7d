"""Jobs of the service, for tests."""

from __future__ import annotations

from typing import Any

from sqlalchemy import NullPool, create_engine, update
from zeus_service import optimizer
from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.registry import POLICIES
from zeus_service.bandit.spec import JobSpec
from zeus_service.config import Config
from zeus_service.db.tables import TRIALS
from zeus_service.messages import Job

LEARNING = {name: policy for name, policy in POLICIES.items() if name != DefaultPolicy.name}
"""The policies that choose by what they have observed."""


def spec_json(**changes: Any) -> dict[str, Any]:
    """A valid specification as JSON, with changes."""
    return {
        "job_id": "job",
        "batch_sizes": [8, 16, 32, 64, 128],
        "default_batch_size": 32,
        "target_metric": 0.9,
        "monitor": "val_acc",
        "max_epochs": 10,
        "max_power_w": 100.0,
        "num_devices": 1,
        "device_model": "Fake GPU",
        "meter": "nvml",
        **changes,
    }


def spec(**changes: Any) -> JobSpec:
    """A valid specification, resolved as the service stores it."""
    return JobSpec.model_validate(spec_json(**{"policy": "zeus", "seed": 1, **changes}))


def register(**changes: Any) -> tuple[Job, bool]:
    """Register a job with a valid specification, with changes, in the application's context."""
    return optimizer.register_job(JobSpec.model_validate(spec_json(**changes)))


def let_leases_expire(database_url: str) -> None:
    """Move the end of every trial's lease into the past, in place of waiting for it."""
    engine = create_engine(Config(database_url=database_url).database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(update(TRIALS).values(lease_expires_at=1.0))
