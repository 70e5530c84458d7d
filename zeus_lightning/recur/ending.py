"""How a try ended: its exit status, and what the run wrote to its outcome file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from zeus_lightning.messages import FAILED, Outcome, Report, TrialStart

EXIT_TRY_AGAIN = 75
"""Exit status of `zeus-lightning exec` if the batch size failed: run the job again.

It is EX_TEMPFAIL in sysexits.h: a temporary failure, worth another try.
"""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The last trial of a run, read from its outcome file.

    Args:
        default_batch_size: The job's.
        outcome: How the trial ended; None while it runs, and if its process was killed.
        report: The last report; None before the first.
        cost_j: The cost at the last report, in joules; None before the first.
        estimated: Whether the joules are estimates.
        earlier_trials: How many trials the run's process had trained before this one.
    """

    trial: TrialStart
    default_batch_size: int
    outcome: Outcome | None
    report: Report | None
    cost_j: float | None
    estimated: bool
    earlier_trials: int = 0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the values in an outcome file; other values are a KeyError or TypeError."""
        report = data.get("report")
        return cls(
            trial=TrialStart.from_json(data["trial"]),
            default_batch_size=data["job"]["default_batch_size"],
            outcome=data["outcome"],
            report=None if report is None else Report.from_json(report),
            cost_j=data.get("cost_j"),
            estimated=data.get("hardware", {}).get("estimated", False),
            earlier_trials=data.get("earlier_trials", 0),
        )


def read_outcome(path: Path) -> RunOutcome | None:
    """Read an outcome file; None if it does not exist, or is something else."""
    try:
        return RunOutcome.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


Result = Literal["done", "again", "missed", "failed", "stop"]
"""What an ended try means for its recurrence.

`done`, `missed` and `failed` complete it. `missed`: the default batch size has trained to its end,
short of the target. `failed`: by an error, or because the default batch size cannot train. Another
try would be the same run again. `again`: the batch size failed, and another try gets another one.
`stop`: the driver must stop, since not even a trial was started.
"""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a try ended.

    Args:
        exit_code: The process's exit status, negative if a signal ended it.
        run: What the run wrote to its outcome file; None if it had no trial.
    """

    exit_code: int
    run: RunOutcome | None

    @property
    def outcome(self) -> str:
        """The outcome, in a word or two."""
        if self.run is not None and self.run.outcome is not None:
            return self.run.outcome
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
        """Whether it reached the target, or as a baseline its own end."""
        return self.outcome in ("converged", "completed")

    def __str__(self) -> str:
        """The end of a try, as in "recurrence 1, try 2 ...": what stopped the driver."""
        if self.result == "failed" and self.outcome in FAILED:
            return f"ended as {self.outcome}"
        if self.exit_code < 0:
            return f"was killed by signal {-self.exit_code}"
        return f"ended with exit status {self.exit_code}"
