"""How a trial can end: which outcomes are results, and which can be resumed."""

from typing import Literal, get_args

Result = Literal["converged", "early_stopped", "not_converged", "diverged", "out_of_memory"]
"""Outcomes that the policy observes."""

Outcome = Literal[Result, "interrupted", "errored", "withdrawn", "lost", "completed"]

RESUMABLE: frozenset[Outcome] = frozenset({"interrupted", "errored", "lost"})
"""Outcomes that a later report revokes: the run is alive after all, or was resumed. They are not
results by themselves; `fold` says when one counts as a result."""

NO_RESULT: frozenset[Outcome] = RESUMABLE | {"withdrawn", "completed"}
"""Outcomes that are not results. `withdrawn`: no run has trained. `completed`: a baseline has
trained to completion."""

FINAL: frozenset[Outcome] = frozenset(get_args(Outcome)) - RESUMABLE
"""The others: later reports are refused."""
