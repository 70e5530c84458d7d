"""`RunOutcome`: what a run has written to its outcome file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from zeus_lightning.messages import Outcome, Report, TrialStart


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """The last trial of a run, as its `TrialRecord` describes it.

    Args:
        outcome: How the trial ended; None while it runs, and after its process was killed.
        report: The last report; None before the first.
        cost: The cost at the last report, in joules; None before the first.
        estimated: Whether the joules are estimates.
    """

    trial: TrialStart
    outcome: Outcome | None
    reason: str
    report: Report | None
    cost: float | None
    estimated: bool

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the values in an outcome file; a KeyError or TypeError if they are others."""
        report = data.get("report")
        return cls(
            trial=TrialStart.from_json(data["trial"]),
            outcome=data["outcome"],
            reason=data.get("reason", ""),
            report=None if report is None else Report.from_json(report),
            cost=data.get("cost"),
            estimated=data.get("hardware", {}).get("estimated", False),
        )


def read_outcome(path: Path) -> RunOutcome | None:
    """Read an outcome file; None if there is none, or it is not one."""
    try:
        return RunOutcome.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
