"""How a run ended says what follows for its recurrence."""

from __future__ import annotations

from typing import Any

import pytest
from records import record, trial_start

from zeus_lightning.recur.ending import Try
from zeus_lightning.run.record import TrialRecord


def ending(exit_code: int = 0, outcome: Any = "converged", why: Any = "explore") -> Try:
    return tried(exit_code, record(trial=trial_start(why=why), outcome=outcome))


def tried(exit_code: int, run: TrialRecord | None) -> Try:
    return Try(recurrence=1, attempt=1, control=False, exit_code=exit_code, run=run)


@pytest.mark.parametrize(
    ("end", "result", "outcome"),
    [
        (ending(), "done", "converged"),
        (ending(-9, "not_converged"), "again", "not_converged"),
        (ending(0, "completed"), "done", "completed"),  # a baseline
        (ending(0, "diverged"), "again", "diverged"),  # the program went on after the failure
        (tried(75, None), "again", "errored"),  # `zeus-lightning exec`, nested
        (tried(0, None), "done", "no trial"),  # it did without the service
        (ending(0, None), "done", "killed"),  # and the shell around it ended with 0
        (ending(0, "lost"), "done", "lost"),  # the service went away; training ended in order
        (ending(1, "not_converged", "control"), "missed", "not_converged"),
        (ending(0, "diverged", "control"), "failed", "diverged"),
        (ending(75, "out_of_memory", "baseline"), "failed", "out_of_memory"),
        (ending(1, "converged"), "failed", "converged"),  # as when its model cannot be saved
        (ending(-9, None), "failed", "killed"),
        (ending(143, None), "failed", "killed"),  # as a shell has it
        (ending(2, "withdrawn"), "failed", "withdrawn"),
        (tried(1, None), "stop", "errored"),  # not even a trial was started
    ],
)
def test_how_a_run_ended_says_what_follows(end: Try, result: str, outcome: str) -> None:
    assert (end.result, end.outcome) == (result, outcome)
