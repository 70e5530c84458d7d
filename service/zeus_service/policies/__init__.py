"""The policies by name."""

from zeus_service.policies.base import Policy
from zeus_service.policies.information_directed import InformationDirectedPolicy
from zeus_service.policies.zeus import ZeusPolicy
from zeus_service.spec import JobSpec

DEFAULT_POLICY = InformationDirectedPolicy.name
POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (ZeusPolicy(), InformationDirectedPolicy())
}


def policy_of(spec: JobSpec) -> Policy:
    """The policy that a job's specification names, or the default one; may raise `KeyError`."""
    return POLICIES[spec.policy or DEFAULT_POLICY]
