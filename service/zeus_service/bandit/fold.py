"""How a job's state follows from its trials: each end is folded into the policy's state.

The state depends on the order in which trials ended, and on which are running, but not on when each
one started: no policy's `observe` reads what `begin` counts, beyond its own trial. So a trial's
start and end can be folded together when it ends; `tests/service/bandit/test_contract.py` checks
this for every policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from zeus_service.bandit import inconclusive
from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.outcomes import NO_RESULT, RESUMABLE, Outcome
from zeus_service.bandit.policy import Choice, Observation, State, Why
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec


class PastTrial(Protocol):
    """What is folded of a trial: `outcome` is None while it runs, `cost` is in joules."""

    batch_size: int
    why: Why
    hardware: Hardware
    outcome: Outcome | None
    cost: float
    epoch: int


def begin(spec: JobSpec, state: State, trial: PastTrial) -> State:
    """Return the state after a trial has started."""
    return policy_of(spec).begin(spec, state, Choice(trial.batch_size, trial.why), trial.hardware)


def end(spec: JobSpec, state: State, trial: PastTrial) -> tuple[State, bool]:
    """Fold the end of a trial that has begun.

    Returns:
        The state, and whether the trial ended without a result that counts as one: see
        `inconclusive`.
    """
    policy, batch_size, outcome = policy_of(spec), trial.batch_size, trial.outcome
    assert outcome is not None, "the trial has ended"
    is_retried = inconclusive.is_retried(state, batch_size)
    counts = outcome in RESUMABLE and is_retried
    observation = Observation(
        choice=Choice(batch_size, trial.why),
        result=outcome if counts or outcome not in NO_RESULT else None,
        cost=trial.cost,
        epochs=trial.epoch,
        hardware=trial.hardware,
    )
    state = policy.observe(spec, state, observation)
    return inconclusive.after(state, batch_size, outcome), counts


def revive(spec: JobSpec, state: State, trial: PastTrial, others: Iterable[PastTrial]) -> State:
    """Return the state after a trial that ended without a result runs again.

    Only valid if no end of its batch size counted as a result; else the job is replayed.

    Args:
        spec: The job.
        state: The state after all ends, that of this trial included.
        trial: The trial.
        others: The job's other trials that have ended, in the order of their ends.
    """
    counts = policy_of(spec).initial_state(spec)
    for other in others:
        if other.outcome is not None:
            counts = inconclusive.after(counts, other.batch_size, other.outcome)
    return begin(spec, inconclusive.with_counts_of(state, counts), trial)


def replay(spec: JobSpec, trials: Iterable[PastTrial]) -> tuple[State, list[bool]]:
    """Fold a job's trials from the start.

    Args:
        spec: The job.
        trials: All of them: the ended ones in the order of their ends, then the running ones.

    Returns:
        The state; and of each trial, whether its end without a result counts as one.
    """
    state, counted = policy_of(spec).initial_state(spec), []
    for trial in trials:
        state, counts = begin(spec, state, trial), False
        if trial.outcome is not None:
            state, counts = end(spec, state, trial)
        counted.append(counts)
    return state, counted


def has_results(spec: JobSpec, state: State) -> bool:
    """Whether a job none of whose trials is running has learned from any of them."""
    initial = policy_of(spec).initial_state(spec)
    return inconclusive.without_counts(state) != inconclusive.without_counts(initial)
