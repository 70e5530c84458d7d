"""The policies by name."""

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
from zeus_service.policies.information_directed import InformationDirectedPolicy
from zeus_service.policies.zeus import ZeusPolicy
from zeus_service.spec import JobSpec

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (ZeusPolicy(), InformationDirectedPolicy())
}
DEFAULT_POLICY = InformationDirectedPolicy.name


def policy_of(spec: JobSpec) -> Policy:
    """The policy of a registered job, whose specification names one.

    Raises:
        KeyError: This version has no policy of that name.
    """
    return POLICIES[spec.policy or DEFAULT_POLICY]


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
    "policy_of",
]
