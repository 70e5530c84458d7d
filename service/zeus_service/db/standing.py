"""What a list shows of a job without folding or reading its state: columns of its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row

from zeus_service.bandit.fold import Event
from zeus_service.bandit.policy import State
from zeus_service.bandit.registry import policy_of
from zeus_service.bandit.spec import JobSpec

COLUMNS = ("stage", "best_batch_size", "exploits", "failures")


@dataclass(frozen=True)
class Standing:
    """How a job stands.

    Args:
        stage: The policy's; empty before the first.
        best_batch_size: The policy's; None before any has converged.
        exploits: Latest choices in a row that were for the best batch size, not to explore.
        failures: Latest ends in a row that did not converge; withdrawn trials do not count.
    """

    stage: str = ""
    best_batch_size: int | None = None
    exploits: int = 0
    failures: int = 0

    @classmethod
    def of(cls, row: Row[Any]) -> Standing:
        """Read a row that has `COLUMNS`. A value of another type is none: it is only shown."""
        stage, best, *counts = (getattr(row, name) for name in COLUMNS)
        exploits, failures = (each if isinstance(each, int) else 0 for each in counts)
        return cls(stage if isinstance(stage, str) else "", best, exploits, failures)

    def after(self, spec: JobSpec, state: State, events: Sequence[Event] = ()) -> Standing:
        """The standing after these events, which have led to this state."""
        exploits, failures = self.exploits, self.failures
        for event in events:
            match event.kind, event.outcome or event.choice.why:
                case "started", "exploit":
                    exploits += 1
                case "started", "explore":
                    exploits = 0
                case "ended", "converged":
                    failures = 0
                case "ended", outcome if outcome != "withdrawn":
                    failures += 1
                case "revived", _:  # its end was no failure after all
                    failures = max(0, failures - 1)
        if self.stage and not any(event.outcome for event in events):
            return replace(self, exploits=exploits, failures=failures)
        return Standing(**stage_and_best(spec, state), exploits=exploits, failures=failures)

    def columns(self) -> dict[str, Any]:
        """The values of `COLUMNS`."""
        return {name: getattr(self, name) for name in COLUMNS}


def stage_and_best(spec: JobSpec, state: State) -> dict[str, Any]:
    """The columns that follow from a policy's state alone."""
    policy = policy_of(spec)
    best = policy.best_batch_size(spec, state)
    return {"stage": policy.stage(spec, state)[:255], "best_batch_size": best}
