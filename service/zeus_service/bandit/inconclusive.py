"""Batch sizes whose trials end without a result, one after the other.

A run that is killed, or whose program raises an error, says nothing about its batch size, so the
policy learns nothing from it. But the cause can depend on the batch size, and then every further
run with it would end in the same way. So after the third such end in a row, a batch size is passed
over until a trial of another one has had a result: that one has trained, so the cause may be the
batch size. Then it is tried once more. If that trial also ends without a result, the batch size is
passed over until four trials of others have had one, then sixteen, and so on.

A trial that is withdrawn does not count: no run trained for it, such as when a run resumes an
earlier trial instead. A baseline that completes does not count either: it has no target.

A wrong program fails with every batch size. When all are passed over, none is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from zeus_service.bandit.fold import PastTrial
from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.outcomes import NO_RESULT, RESUMABLE, Outcome
from zeus_service.bandit.policy import ArmEstimate, Choice, NoBatchSizeLeft, State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec

IN_A_ROW = 3

Counts = dict[str, dict[str, Any]]
"""JSON: `{batch size: {"ends": number of ends without a result in a row, "outcome": the last one's,
"results": number of results of other batch sizes since then}}`"""


def passed_over(counts: Counts) -> dict[int, str]:
    """The batch sizes that are not to be tried now, each with the outcome of its latest trial."""
    return {
        int(batch_size): row["outcome"]
        for batch_size, row in counts.items()
        if row["ends"] >= IN_A_ROW and row["results"] < 4 ** (row["ends"] - IN_A_ROW)
    }


def after(counts: Counts, batch_size: int, outcome: Outcome) -> Counts:
    """Count a trial's end, whatever it is."""
    if outcome not in NO_RESULT:
        return _after_result(counts, batch_size, outcome)
    # One that is passed over by now was started before.
    if outcome not in RESUMABLE or batch_size in passed_over(counts):
        return counts
    ends = counts.get(str(batch_size), {"ends": 0})["ends"] + 1
    return {**counts, str(batch_size): {"ends": ends, "outcome": outcome, "results": 0}}


def after_all(trials: Iterable[PastTrial]) -> Counts:
    """Count the ends of trials, in their order."""
    counts: Counts = {}
    for trial in trials:
        if trial.outcome is not None:
            counts = after(counts, trial.batch_size, trial.outcome)
    return counts


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
        NoBatchSizeLeft: All usable ones have failed.
    """
    policy, passed = policy_of(spec), passed_over(counts)
    with suppress(NoBatchSizeLeft):
        others = [size for size in usable if size not in passed]
        return policy.next_batch_size(spec, state, hardware, rng, others)
    return policy.next_batch_size(spec, state, hardware, rng, usable)


def marked(arms: Iterable[ArmEstimate], counts: Counts) -> list[ArmEstimate]:
    """Estimates, with the latest outcome as the status of batch sizes that are passed over."""
    passed = passed_over(counts)
    return [
        replace(arm, status=passed[arm.batch_size])
        if arm.batch_size in passed and arm.status == "alive"
        else arm
        for arm in arms
    ]


def _after_result(counts: Counts, batch_size: int, outcome: Outcome) -> Counts:
    """Count a result for the other batch sizes, unless the trial only ran out of memory."""
    more = outcome != "out_of_memory"
    return {
        size: {**row, "results": row["results"] + more}
        for size, row in counts.items()
        if size != str(batch_size)
    }
