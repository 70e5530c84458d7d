"""How a job's state follows from its trials: each end is folded into the policy's state.

The state depends on the order in which trials ended, and on which are running, but not on when each
one started: no policy's `observe` reads what `begin` counts, beyond its own trial. So a trial's
start and end can be folded together when it ends; `tests/service/bandit/test_contract.py` checks
this for every policy. An end without a result leaves the state as it was before the start, so a
trial that runs again after such an end only begins again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.outcomes import NO_RESULT, Outcome
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


def end(spec: JobSpec, state: State, trial: PastTrial) -> State:
    """Return the state after the end of a trial that has begun."""
    assert trial.outcome is not None, "the trial has ended"
    observation = Observation(
        choice=Choice(trial.batch_size, trial.why),
        result=None if trial.outcome in NO_RESULT else trial.outcome,
        cost=trial.cost,
        epochs=trial.epoch,
        hardware=trial.hardware,
    )
    return policy_of(spec).observe(spec, state, observation)


def replay(spec: JobSpec, trials: Iterable[PastTrial]) -> State:
    """Return the state that follows from a job's trials.

    Args:
        spec: The job.
        trials: All of them: the ended ones in the order of their ends, then the running ones.
    """
    state = policy_of(spec).initial_state(spec)
    for trial in trials:
        state = begin(spec, state, trial)
        if trial.outcome is not None:
            state = end(spec, state, trial)
    return state
