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

`fold` keeps the counts in a policy's state, if the initial state has an empty entry `unfinished`
for them; such a policy takes no batch size that is passed over while there are others.
"""

from typing import Any

from zeus_service.bandit.outcomes import NO_RESULT, RESUMABLE, Outcome
from zeus_service.bandit.policy import State

IN_A_ROW = 3
KEY = "unfinished"
"""`{batch size: {"ends": number of ends without a result in a row, "outcome": of the last one,
"results": number of results of other batch sizes since then}}`"""


def passed_over(state: State) -> dict[int, str]:
    """The batch sizes that are not to be tried now, each with the outcome of its latest trial."""
    return {
        int(batch_size): row["outcome"]
        for batch_size, row in state.get(KEY, {}).items()
        if row["results"] < _results_needed(row)
    }


def is_retried(state: State, batch_size: int) -> bool:
    """Whether the batch size was passed over, and others have had results since."""
    row = state.get(KEY, {}).get(str(batch_size))
    return row is not None and 0 < _results_needed(row) <= row["results"]


def after(state: State, batch_size: int, outcome: Outcome) -> State:
    """Count a trial's end, whatever it is."""
    count = after_end if outcome in NO_RESULT else after_result
    return count(state, batch_size, outcome)


def after_end(state: State, batch_size: int, outcome: Outcome) -> State:
    """Count a trial's end without a result."""
    if KEY not in state or outcome not in RESUMABLE:
        return state
    if batch_size in passed_over(state):  # the trial was started before
        return state
    ends = state[KEY].get(str(batch_size), {"ends": 0})["ends"] + 1
    row = {"ends": ends, "outcome": outcome, "results": 0}
    return {**state, KEY: {**state[KEY], str(batch_size): row}}


def after_result(state: State, batch_size: int, outcome: Outcome) -> State:
    """Count a result for the other batch sizes, unless the trial only ran out of memory."""
    if KEY not in state:
        return state
    rows = {size: row for size, row in state[KEY].items() if size != str(batch_size)}
    if outcome != "out_of_memory":
        rows = {size: {**row, "results": row["results"] + 1} for size, row in rows.items()}
    return {**state, KEY: rows}


def with_counts_of(state: State, counts: State) -> State:
    """Replace the counts of a state with another state's."""
    return {**state, KEY: counts[KEY]} if KEY in state else state


def without_counts(state: State) -> State:
    """What the policy has learned."""
    return {key: value for key, value in state.items() if key != KEY}


def _results_needed(row: dict[str, Any]) -> int:
    """How many results of others end the wait: none, or 1, 2, 4, and so on."""
    return int(2 ** (row["ends"] - IN_A_ROW)) if row["ends"] >= IN_A_ROW else 0
