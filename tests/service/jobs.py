"""Job specifications for tests."""

from __future__ import annotations

from typing import Any

from zeus_service.spec import JobSpec


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
