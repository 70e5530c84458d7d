"""Batch sizes whose trials end without a result, one after the other.

A run that is killed, or whose program raises an error, says nothing about its batch size. But the
cause can depend on the batch size, and then every further run with it would end in the same way. So
after the third such end in a row, a batch size is passed over until a trial of another one has had
a result: that one has trained, so the cause may be the batch size. Then it is tried once more. If
that trial also ends without a result, its end counts as a result, and the batch size is passed over
until twice as many trials of others have had one, and so on.

A trial that is withdrawn does not count: no run trained for it, such as when a run resumes an
earlier trial instead. A baseline that completes does not count either: it has no target.

A wrong program fails with every batch size. When all are passed over, none is, and no batch size
gets a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from zeus_service.bandit.outcomes import NO_RESULT, RESUMABLE, Outcome
from zeus_service.bandit.policy import ArmEstimate

IN_A_ROW = 3

Counts = dict[str, dict[str, Any]]
"""JSON: `{batch size: {"ends": number of ends without a result in a row, "outcome": the last one's,
"results": number of results of other batch sizes since then}}`"""


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
