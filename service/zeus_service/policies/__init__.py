"""The policies by name."""

from __future__ import annotations

from zeus_service.policies.base import (
    ArmEstimate,
    Choice,
    NoBatchSizeLeft,
    Observation,
    Policy,
    State,
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
    """The policy that a job's specification names, or the default one.

    Raises:
        KeyError: There is no policy of that name.
    """
    return POLICIES[spec.policy or DEFAULT_POLICY]


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "ArmEstimate",
    "Choice",
    "NoBatchSizeLeft",
    "Observation",
    "Policy",
    "State",
    "Why",
    "policy_of",
]
