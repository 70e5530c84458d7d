"""How a run ended says what follows for its recurrence."""

from __future__ import annotations

from typing import Any

import pytest
from records import record, trial_start

from zeus_lightning.recur.ending import Ending


def ending(exit_code: int = 0, outcome: Any = "converged", why: Any = "explore") -> Ending:
    return Ending(exit_code=exit_code, run=record(trial=trial_start(why=why), outcome=outcome))


@pytest.mark.parametrize(
    ("end", "result", "outcome"),
    [
        (ending(), "done", "converged"),
        (ending(-9, "not_converged"), "again", "not_converged"),
        (ending(0, "completed"), "done", "completed"),  # a baseline
        (ending(0, "diverged"), "again", "diverged"),  # the program went on after the failure
        (Ending(exit_code=75, run=None), "again", "errored"),  # `zeus-lightning exec`, nested
        (Ending(exit_code=0, run=None), "done", "no trial"),  # it did without the service
        (ending(0, None), "done", "killed"),  # and the shell around it ended with 0
        (ending(0, "lost"), "done", "lost"),  # the service went away; training ended in order
        (ending(1, "not_converged", "control"), "missed", "not_converged"),
        (ending(0, "diverged", "control"), "failed", "diverged"),
        (ending(75, "out_of_memory", "baseline"), "failed", "out_of_memory"),
        (ending(1, "converged"), "failed", "converged"),  # as when its model cannot be saved
        (ending(-9, None), "failed", "killed"),
        (ending(143, None), "failed", "killed"),  # as a shell has it
        (ending(2, "withdrawn"), "failed", "withdrawn"),
        (Ending(exit_code=1, run=None), "stop", "errored"),  # not even a trial was started
    ],
)
def test_how_a_run_ended_says_what_follows(end: Ending, result: str, outcome: str) -> None:
    assert (end.result, end.outcome) == (result, outcome)
