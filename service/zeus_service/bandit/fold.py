"""How a policy chooses, and how a job's state follows from its trials: by folding each end into it.

The state depends on the order in which trials ended, and on which are running, but not on when each
one started: no policy's `observe` reads what `begin` counts, beyond its own trial. So a trial's
start and end can be folded together when it ends; `tests/service/bandit/test_contract.py` checks
this for every policy. An end without a result leaves the state as it was before the start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from zeus_service.bandit import inconclusive
from zeus_service.bandit.inconclusive import Counts
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import Choice, NoBatchSizeLeft, Observation, State, Why
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import Hardware, JobSpec


class PastTrial(Protocol):
    """What is folded of a trial: `outcome` is None while it runs, `cost` is in joules."""

    batch_size: int
    why: Why
    hardware: Hardware
    outcome: Outcome | None
    cost: float
    epoch: int


def choose(
    spec: JobSpec,
    state: State,
    counts: Counts,
    hardware: Hardware,
    rng: np.random.Generator,
    usable: Collection[int],
) -> Choice:
    """The policy's choice among the batch sizes that are not passed over, or else among all.

    Raises:
        NoBatchSizeLeft: None of `usable` is left to try.
    """
    policy, passed = policy_of(spec), inconclusive.passed_over(counts)
    if others := [size for size in usable if size not in passed]:
        with suppress(NoBatchSizeLeft):
            return policy.next_batch_size(spec, state, hardware, rng, others)
    return policy.next_batch_size(spec, state, hardware, rng, usable)


def begin(spec: JobSpec, state: State, trial: PastTrial) -> State:
    """Return the state after a trial has started."""
    return policy_of(spec).begin(spec, state, Choice(trial.batch_size, trial.why), trial.hardware)


def end(spec: JobSpec, state: State, counts: Counts, trial: PastTrial) -> tuple[State, Counts]:
    """Return the state, and the counts of ends without a result, after the end of a trial."""
    assert trial.outcome is not None, "the trial has ended"
    ended = trial.batch_size, trial.outcome
    observation = Observation(
        choice=Choice(trial.batch_size, trial.why),
        result=trial.outcome if inconclusive.is_result(counts, *ended) else None,
        cost=trial.cost,
        epochs=trial.epoch,
        hardware=trial.hardware,
    )
    state = policy_of(spec).observe(spec, state, observation)
    return state, inconclusive.count_end(counts, *ended)


def replay(spec: JobSpec, trials: Iterable[PastTrial]) -> tuple[State, Counts]:
    """Return the state and counts that follow from a job's trials.

    Args:
        spec: The job.
        trials: All of them: the ended ones in the order of their ends, then the running ones.
    """
    state, counts = policy_of(spec).initial_state(spec), Counts()
    for trial in trials:
        state = begin(spec, state, trial)
        if trial.outcome is not None:
            state, counts = end(spec, state, counts, trial)
    return state, counts


def revive(
    spec: JobSpec, state: State, before: Sequence[PastTrial], after: Sequence[PastTrial]
) -> tuple[State, Counts]:
    """Return the state and counts once a trial that ended without a result runs again.

    Trials are replayed only if an end of its batch size counted as a result, since that may have
    depended on this end: one in some hundred ends, at most.

    Args:
        spec: The job.
        state: What follows from `before`.
        before: The job's trials, as for `replay`.
        after: The same, but the trial runs, and comes last.
    """
    _, sizes = inconclusive.count_ends(_ends(before))
    if after[-1].batch_size in sizes:
        return replay(spec, after)
    counts, _ = inconclusive.count_ends(_ends(after))
    return begin(spec, state, after[-1]), counts


def _ends(trials: Iterable[PastTrial]) -> Iterator[tuple[int, Outcome]]:
    return ((each.batch_size, each.outcome) for each in trials if each.outcome is not None)
