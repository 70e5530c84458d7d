"""What happened to a job, and the fold of it that is the job's bandit state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, cast

from zeus_service.policies import NO_VERDICT, Choice, Observation, State, Verdict, policy_of
from zeus_service.spec import JobSpec

Outcome = Literal[
    "converged",
    "early_stopped",
    "not_converged",
    "diverged",
    "out_of_memory",
    "interrupted",
    "errored",
    "withdrawn",
    "lost",
]
RESUMABLE = frozenset({"interrupted", "errored", "lost"})
"""Outcomes that a later report takes back: the run is alive after all, or was resumed."""


@dataclass(frozen=True)
class Event:
    """One line of a job's append-only history.

    Args:
        kind: `started`, `revived` (it was lost or interrupted, and reports again) or `ended`.
        trial_number: The trial it happened to.
        choice: What that trial was started with.
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
