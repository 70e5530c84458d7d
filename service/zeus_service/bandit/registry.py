"""The policies by name: the service's own, and those of installed distributions.

A policy of another distribution must pass `test_contract.py` and
`test_policy_on_any_processor.py` in `tests/service/bandit/`.
"""

from importlib.metadata import EntryPoint, entry_points

from zeus_service.bandit.default import DefaultPolicy
from zeus_service.bandit.information_directed import InformationDirectedPolicy
from zeus_service.bandit.per_hardware import PerHardware
from zeus_service.bandit.policy import Policy
from zeus_service.bandit.spec import JobSpec
from zeus_service.bandit.zeus import ZeusPolicy
from zeus_service.errors import Unusable

DEFAULT_POLICY = InformationDirectedPolicy.name
GROUP = "zeus_service.policies"
"""Entry points of this group are policies: an object, or a class without arguments."""


def policy_of(spec: JobSpec) -> Policy:
    """The policy that a job's specification names, or the default one; may raise `KeyError`."""
    return POLICIES[spec.policy or DEFAULT_POLICY]


def _all() -> dict[str, Policy]:
    own = (
        PerHardware(ZeusPolicy()),
        InformationDirectedPolicy(),
        PerHardware(DefaultPolicy()),
    )
    found: dict[str, Policy] = {policy.name: policy for policy in own}
    for entry_point in entry_points(group=GROUP):
        if entry_point.name in found:
            raise _unusable(entry_point, "another policy has this name")
        found[entry_point.name] = _load(entry_point)
    return found


def _load(entry_point: EntryPoint) -> Policy:
    try:
        policy = entry_point.load()
        policy = policy() if isinstance(policy, type) else policy
    except Exception as error:
        raise _unusable(entry_point, f"{type(error).__name__}: {error}") from error
    if not isinstance(policy, Policy):
        raise _unusable(entry_point, "it lacks attributes of zeus_service.bandit.policy.Policy")
    if policy.name != entry_point.name:
        reason = f"its attribute `name` is {policy.name!r}, not the entry point's name"
        raise _unusable(entry_point, reason)
    return policy


def _unusable(entry_point: EntryPoint, reason: str) -> Unusable:
    distribution = entry_point.dist.name if entry_point.dist else "an unknown distribution"
    return Unusable(
        f"policy {entry_point.name!r} ({entry_point.value} of {distribution}): {reason}; fix "
        "or uninstall it"
    )


POLICIES = _all()
