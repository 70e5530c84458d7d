"""How a try ended: its exit status, and what the run wrote to its outcome file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zeus_lightning.messages import FAILED
from zeus_lightning.run.record import TrialRecord

EXIT_TRY_AGAIN = 75
"""Exit status of `zeus-lightning exec` if the batch size failed: run the job again.

It is EX_TEMPFAIL in sysexits.h: a temporary failure, worth another try.
"""


Result = Literal["done", "again", "missed", "failed", "stop"]
"""What an ended try means for its recurrence.

`done`, `missed` and `failed` complete it. `missed`: the default batch size has trained to its end,
short of the target. `failed`: by an error, or because the default batch size cannot train. Another
try would be the same run again. `again`: the batch size failed, and another try gets another one.
`stop`: the driver must stop, since not even a trial was started.
"""


@dataclass(frozen=True, kw_only=True)
class Try:
    """One launch of the command, which has ended; recurrences and attempts count from 1.

    Args:
        control: Whether it was to be a control trial: the default batch size, never stopped early.
        exit_code: The process's exit status, negative if a signal ended it.
        run: What the run wrote to its outcome file; None if it had no trial.
    """

    recurrence: int
    attempt: int
    control: bool
    exit_code: int
    run: TrialRecord | None

    @property
    def outcome(self) -> str:
        """The outcome, in a word or two; a baseline that trained to its end has completed."""
        if self.run is not None and self.run.outcome is not None:
            return self.run.outcome_text
        if self.exit_code == 0 and self.run is None:
            return "no trial"
        # A status of 0 then belongs to another process, such as the last command of a pipeline.
        return "errored" if 0 < self.exit_code <= 128 else "killed"  # a shell says 128 + N

    @property
    def result(self) -> Result:
        """What follows for the recurrence."""
        outcome = None if self.run is None else self.run.outcome
        if outcome in FAILED or (self.exit_code == EXIT_TRY_AGAIN and outcome != "converged"):
            if self.run is None or self.run.trial.is_chosen:
                return "again"
            return "missed" if outcome == "not_converged" else "failed"
        if self.exit_code == 0:
            return "done"
        return "stop" if self.run is None else "failed"

    @property
    def has_converged(self) -> bool:
        """Whether it reached the target, or completed as a baseline."""
        return self.outcome in ("converged", "completed")

    @property
    def ending(self) -> str:
        """How it ended, as the predicate of a sentence."""
        if self.result == "failed" and self.outcome in FAILED:
            return f"ended as {self.outcome}"
        text = f"{self.outcome}, but " if self.has_converged else ""
        if self.exit_code < 0:
            return f"{text}was killed by signal {-self.exit_code}"
        return f"{text}ended with exit status {self.exit_code}"

    def __str__(self) -> str:
        """The try and its end, for what stopped the driver."""
        return f"recurrence {self.recurrence}, try {self.attempt} {self.ending}"
