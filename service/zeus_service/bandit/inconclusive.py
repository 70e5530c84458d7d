"""Batch sizes whose trials end without a verdict, one after the other.

A run that is killed, or whose program raises an error, says nothing about its batch size. But the
cause can depend on the batch size, and then every further run with it would end in the same way. So
after the third such end in a row, a batch size is passed over until a trial of another one has had
a verdict: it has trained, so the cause may be the batch size. Then it is tried once more. If that
trial ends without a verdict, too, its end counts as a verdict, and the batch size is passed over
until twice as many trials of others have had one, and so on.

A trial that is withdrawn does not count: no run trained for it, such as when a run resumes an
earlier trial instead.

A wrong program fails with every batch size. When all are passed over, none is, and no batch size
gets a verdict.

`history` keeps the counts in a policy's state, if the initial state has an empty entry `unfinished`
for them; such a policy takes no batch size that is passed over while there are others.
"""

from typing import Any

from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.policy import State

IN_A_ROW = 3
KEY = "unfinished"
"""`{batch size: {"ends": number of ends without a verdict in a row, "outcome": of the last one,
"verdicts": number of verdicts of other batch sizes since then}}`"""


def passed_over(state: State) -> dict[int, str]:
    """The batch sizes that are not to be tried now, each with the outcome of its latest trial."""
    return {
        int(batch_size): row["outcome"]
        for batch_size, row in state.get(KEY, {}).items()
        if row["verdicts"] < _verdicts_needed(row)
    }


def is_retried(state: State, batch_size: int) -> bool:
    """Whether the batch size was passed over, and others have had verdicts since."""
    row = state.get(KEY, {}).get(str(batch_size))
    return row is not None and 0 < _verdicts_needed(row) <= row["verdicts"]


def after_no_verdict(state: State, batch_size: int, outcome: Outcome) -> State:
    """Count a trial's end without a verdict."""
    if KEY not in state or batch_size in passed_over(state):  # the trial was started before
        return state
    ends = state[KEY].get(str(batch_size), {"ends": 0})["ends"] + 1
    row = {"ends": ends, "outcome": outcome, "verdicts": 0}
    return {**state, KEY: {**state[KEY], str(batch_size): row}}


def after_verdict(state: State, batch_size: int, outcome: Outcome) -> State:
    """Count a verdict for the other batch sizes, unless the trial only ran out of memory."""
    state = after_progress(state, batch_size)
    if KEY not in state or outcome == "out_of_memory":
        return state
    rows = state[KEY].items()
    return {
        **state,
        KEY: {size: {**row, "verdicts": row["verdicts"] + 1} for size, row in rows},
    }


def after_progress(state: State, batch_size: int) -> State:
    """Begin to count anew: a trial of this batch size has had a verdict, or has come back."""
    if KEY not in state:
        return state
    return {**state, KEY: {s: row for s, row in state[KEY].items() if s != str(batch_size)}}


def without_counts(state: State) -> State:
    """What the policy has learned."""
    return {key: value for key, value in state.items() if key != KEY}


def _verdicts_needed(row: dict[str, Any]) -> int:
    """How many verdicts of others end the wait: none, or 1, 2, 4, and so on."""
    return int(2 ** (row["ends"] - IN_A_ROW)) if row["ends"] >= IN_A_ROW else 0
