"""The events of a job, and their fold, which is the job's bandit state."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pydantic import FiniteFloat, TypeAdapter

from zeus_service.bandit import inconclusive as unfinished
from zeus_service.bandit.outcomes import NO_VERDICT, Outcome
from zeus_service.bandit.policy import Choice, Observation, State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec


@dataclass(frozen=True)
class Event:
    """One line of a job's append-only history.

    Args:
        kind: `started`, `ended`, or `revived`: it had ended with an outcome in `RESUMABLE`.
        trial_number: The trial.
        choice: The batch size that the trial was started with, and why.
        outcome: How it ended; None unless `ended`.
        cost: Cost in joules spent by then; 0 if `started`.
        energy_j: Joules spent by then, for the job's ledger. The events that are stored lack it.
        time_s: Seconds spent by then, likewise.
        power_limit_w: Mean power limit by then, likewise; None if it is unknown.
        default_power_limit_w: The GPUs' default one, likewise.
    """

    kind: Literal["started", "revived", "ended"]
    trial_number: int
    choice: Choice
    outcome: Outcome | None = None
    cost: FiniteFloat = 0.0
    energy_j: FiniteFloat = 0.0
    time_s: FiniteFloat = 0.0
    power_limit_w: FiniteFloat | None = None
    default_power_limit_w: FiniteFloat | None = None


EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Checks an event that was stored."""


def apply(spec: JobSpec, state: State, event: Event) -> State:
    """The state after one more event; see `unfinished` for ends without a verdict.

    Raises:
        ValueError: The event has a batch size that the job does not have.
    """
    policy, batch_size = policy_of(spec), event.choice.batch_size
    if batch_size not in spec.batch_sizes:
        raise ValueError(f"the job has no batch size {batch_size}")
    if event.outcome is None:
        state = policy.begin(spec, state, event.choice)
        return unfinished.after_progress(state, batch_size) if event.kind == "revived" else state
    if event.outcome not in NO_VERDICT:
        observation = Observation(event.choice, event.outcome, event.cost)
        state = policy.observe(spec, state, observation)
        return unfinished.after_verdict(state, batch_size, event.outcome)
    is_run = event.outcome != "withdrawn"
    verdict = event.outcome if is_run and unfinished.is_retried(state, batch_size) else None
    state = policy.observe(spec, state, Observation(event.choice, verdict, event.cost))
    return unfinished.after_no_verdict(state, batch_size, event.outcome) if is_run else state


def fold(spec: JobSpec, events: Iterable[Event]) -> State:
    """The state after all events, from the start."""
    initial = policy_of(spec).initial_state(spec)
    return reduce(lambda state, event: apply(spec, state, event), events, initial)


def has_verdicts(spec: JobSpec, state: State) -> bool:
    """Whether a job whose trials have all ended has learned from any of them."""
    return unfinished.without_counts(state) != unfinished.without_counts(fold(spec, []))
