"""How a policy chooses, and how a job's state follows from its trials: by folding each end into it.

The state depends on the order in which trials ended, and on which are running, but not on when each
one started: no policy's `observe` reads what `begin` counts, beyond its own trial. So a trial's
start and end can be folded together when it ends; `tests/service/bandit/test_contract.py` checks
this for every policy. An end without a result leaves the state as it was before the start.

**Ends without a result.** A run that is killed, or whose program raises an error, says nothing
about its batch size. But the cause can depend on the batch size, and then every further run with it
would end in the same way. So after the third such end in a row, a batch size is passed over until a
trial of another one has had a result: that one has trained, so the cause may be the batch size.
Then it is tried once more. If that trial also ends without a result, its end counts as a result,
and the batch size is passed over until twice as many trials of others have had one, and so on.

A trial that is withdrawn does not count: no run trained for it, such as when a run resumes an
earlier trial instead. A baseline that completes does not count either: it has no target.

A wrong program fails with every batch size. When all are passed over, none is, and no batch size
gets a result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from zeus_service.bandit.outcomes import NO_RESULT, RESUMABLE, Outcome
from zeus_service.bandit.policy import ArmEstimate, Choice, NoBatchSizeLeft, Observation, State, Why
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import Hardware, JobSpec

IN_A_ROW = 3

Counts = dict[str, dict[str, Any]]
"""JSON: `{batch size: {"ends": number of ends without a result in a row, "outcome": the last one's,
"results": number of results of other batch sizes since then}}`"""


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
    policy, passed = policy_of(spec), passed_over(counts)
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
        result=trial.outcome if is_result(counts, *ended) else None,
        cost=trial.cost,
        epochs=trial.epoch,
        hardware=trial.hardware,
    )
    state = policy_of(spec).observe(spec, state, observation)
    return state, count_end(counts, *ended)


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
    _, sizes = count_ends(_ends(before))
    if after[-1].batch_size in sizes:
        return replay(spec, after)
    counts, _ = count_ends(_ends(after))
    return begin(spec, state, after[-1]), counts


def passed_over(counts: Counts) -> dict[int, str]:
    """The batch sizes that are not to be tried now, each with the outcome of its latest trial."""
    return {
        int(batch_size): row["outcome"]
        for batch_size, row in counts.items()
        if row["results"] < _results_needed(row)
    }


def is_result(counts: Counts, batch_size: int, outcome: Outcome) -> bool:
    """Whether a trial's end is a result, or counts as one: others have had results meanwhile."""
    if outcome not in RESUMABLE:
        return outcome not in NO_RESULT
    row = counts.get(str(batch_size))
    return row is not None and 0 < _results_needed(row) <= row["results"]


def count_end(counts: Counts, batch_size: int, outcome: Outcome) -> Counts:
    """Count a trial's end, whatever it is."""
    if outcome not in NO_RESULT:
        return _after_result(counts, batch_size, outcome)
    # One that is passed over by now was started before.
    if outcome not in RESUMABLE or batch_size in passed_over(counts):
        return counts
    ends = counts.get(str(batch_size), {"ends": 0})["ends"] + 1
    return {**counts, str(batch_size): {"ends": ends, "outcome": outcome, "results": 0}}


def count_ends(ends: Iterable[tuple[int, Outcome]]) -> tuple[Counts, set[int]]:
    """Count trials' ends, each a batch size and an outcome, in their order.

    Returns:
        The counts, and the batch sizes of which an end without a result counted as one.
    """
    counts: Counts = {}
    sizes = set()
    for batch_size, outcome in ends:
        if outcome in RESUMABLE and is_result(counts, batch_size, outcome):
            sizes.add(batch_size)
        counts = count_end(counts, batch_size, outcome)
    return counts, sizes


def mark_passed_over(arms: Sequence[ArmEstimate], counts: Counts) -> list[ArmEstimate]:
    """Estimates, with the latest outcome as the status of batch sizes that are passed over."""
    passed = passed_over(counts)
    if all(arm.batch_size in passed for arm in arms if arm.status == "alive"):
        return list(arms)  # none is passed over
    return [
        replace(arm, status=passed[arm.batch_size])
        if arm.batch_size in passed and arm.status == "alive"
        else arm
        for arm in arms
    ]


def _ends(trials: Iterable[PastTrial]) -> Iterator[tuple[int, Outcome]]:
    return ((each.batch_size, each.outcome) for each in trials if each.outcome is not None)


def _after_result(counts: Counts, batch_size: int, outcome: Outcome) -> Counts:
    """Count a result for the other batch sizes, unless the trial only ran out of memory."""
    more = outcome != "out_of_memory"
    return {
        size: {**row, "results": row["results"] + more}
        for size, row in counts.items()
        if size != str(batch_size)
    }


def _results_needed(row: dict[str, Any]) -> int:
    """How many results of others end the wait: none, or 1, 2, 4, and so on."""
    return int(2 ** (row["ends"] - IN_A_ROW)) if row["ends"] >= IN_A_ROW else 0
