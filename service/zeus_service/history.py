"""The events of a job, and their fold, which is the job's bandit state."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, cast

from zeus_service.outcomes import NO_VERDICT, Outcome, Verdict
from zeus_service.policies import policy_of
from zeus_service.policies.base import Choice, Observation, State
from zeus_service.spec import JobSpec


@dataclass(frozen=True)
class Event:
    """One line of a job's append-only history.

    Args:
        kind: `started`, `revived` (lost or interrupted, and reporting again) or `ended`.
        trial_number: The trial.
        choice: The batch size that the trial was started with, and why.
        outcome: How it ended; None unless `ended`.
        cost: Cost in joules spent by then; 0 unless `ended`.
    """

    kind: Literal["started", "revived", "ended"]
    trial_number: int
    choice: Choice
    outcome: Outcome | None = None
    cost: float = 0.0


def apply(spec: JobSpec, state: State, event: Event) -> State:
    """The state after one more event."""
    policy = policy_of(spec)
    if event.kind != "ended":
        return policy.begin(spec, state, event.choice)
    verdict = None if event.outcome in NO_VERDICT else cast("Verdict", event.outcome)
    return policy.observe(spec, state, Observation(event.choice, verdict, event.cost))


def fold(spec: JobSpec, events: Iterable[Event]) -> State:
    """The state after all events, from the start."""
    initial = policy_of(spec).initial_state(spec)
    return reduce(lambda state, event: apply(spec, state, event), events, initial)
