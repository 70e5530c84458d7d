"""The policies by name, and the fold that carries a job's state through its events."""

from __future__ import annotations

from zeus_service.policies.base import (
    NO_VERDICT,
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    Policy,
    State,
    Verdict,
    Why,
)
from zeus_service.policies.zeus import ZeusPolicy

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (ZeusPolicy(),)}
DEFAULT_POLICY = "zeus"

__all__ = [
    "DEFAULT_POLICY",
    "NO_VERDICT",
    "POLICIES",
    "ArmEstimate",
    "Choice",
    "NoBatchSizeLeft",
    "Observation",
    "Policy",
    "State",
    "Verdict",
    "Why",
]
