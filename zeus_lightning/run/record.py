"""`TrialRecord`: a run's trial, in memory, in checkpoints and in the outcome file."""

from __future__ import annotations

import json
import math
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import (
    Hardware,
    JobSpec,
    Outcome,
    Report,
    TrialStart,
    TrialStatus,
    known_fields,
)
from zeus_lightning.meters import Reading

RESUMABLE = (None, "interrupted", "errored", "lost")
"""Outcomes of trials that can be resumed; None: the trial is running."""


@dataclass(kw_only=True)
class TrialRecord:
    """A trial from its start to its end, as the run that trains it records it.

    Args:
        hardware: What it trains on.
        report: The last report; None before the first.
        cost_j: The cost at that report, in joules; None before the first.
        outcome: How the trial ended; None while it runs.
        reason: Why it ended, in one sentence.
        spent: Joules and seconds at the last report, or as the checkpoint was saved.
        unsent: Reports that the service has not received, in order.
    """

    job: JobSpec
    trial: TrialStart
    hardware: Hardware
    report: Report | None = None
    cost_j: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    spent: Reading = field(default_factory=lambda: Reading(0.0, 0.0))
    unsent: list[Report] = field(default_factory=list)

    def __str__(self) -> str:
        return f"trial {self.trial.trial_number} of job {self.job.job_id!r}"

    @property
    def target_reached(self) -> bool:
        """Whether the last report's metric reaches the job's target."""
        return self.report is not None and self.job.is_reached_by(self.report.metric)

    @property
    def asks_for_action(self) -> bool:
        """Whether the reason asks the job's owner to do something."""
        return "pass target_metric" in self.reason

    @property
    def outcome_text(self) -> str:
        """The outcome; a baseline has completed, even if it has then reached its job's target."""
        is_baseline = self.trial.why == "baseline" and self.outcome == "converged"
        return "completed" if is_baseline else str(self.outcome)

    def summary(self) -> str:
        """How the trial ended, and why, in one line."""
        return (
            f"trial {self.trial.trial_number} with batch size {self.trial.batch_size} ended as "
            f"{self.outcome_text}: {self.reason.rstrip('.')}"
        )

    def measured(self) -> str:
        """What the trial had reached and used at its last report, in one line."""
        report, cost_j = self.report, self.cost_j
        assert report is not None
        assert cost_j is not None
        estimated = " (estimated)" if self.hardware.estimated else ""
        return (
            f"{self}: last {self.job.monitor} {report.metric:.6g} after "
            f"{epochs_text(report.epoch)}, {report.time_s:.1f} s, "
            f"{energy_text(report.energy_j)}{estimated}, cost {energy_text(cost_j)}"
        )

    def failure(self) -> str:
        """The summary of a trial whose batch size has failed, and what to do next."""
        if self.job.target_metric is None:
            return (
                f"{self.summary()}. No target can be learned from this baseline; fix the program, "
                "or pass another default_batch_size and job_id"
            )
        if not self.trial.is_chosen:
            return (
                f"{self.summary()}. Another control trial would do the same: check the target and "
                "the program"
            )
        return f"{self.summary()}. The next run may get another size"

    def saved(self, spent: Reading) -> TrialRecord:
        """The record for a checkpoint, with what was spent by now."""
        return replace(self, spent=spent, unsent=list(self.unsent))

    def reopened(self, job: JobSpec, received: int) -> TrialRecord:
        """The record of the resumed trial, of which the service has received so many reports.

        Reports made after the checkpoint are made again, with other figures and new numbers.
        """
        unsent = [report for report in self.unsent if report.sequence > received]
        return replace(self, job=job, outcome=None, reason="", unsent=unsent)

    @property
    def is_resumable(self) -> bool:
        """Whether the trial can be resumed, as far as this process knows."""
        return self.outcome in RESUMABLE and math.isfinite(self.spent.energy_j)

    def check_resumable(self, job: JobSpec, hardware: Hardware, status: TrialStatus | None) -> None:
        """Raise a `ZeusConfigError` unless the job's run can resume a trial of this status."""
        if self.job.job_id != job.job_id:
            problem = f"but this run's job is {job.job_id!r}"
        elif not math.isfinite(self.spent.energy_j):
            problem = "whose energy could not be measured"
        elif self.hardware != hardware:
            now, known = asdict(hardware), asdict(self.hardware)
            name = next(name for name in known if known[name] != now[name])
            problem = f"which ran on other hardware ({name} {known[name]!r}, not {now[name]!r})"
        elif status is None or status.generation != self.trial.generation:
            problem = "which this service does not have (a deleted job, or another service's URL)"
        elif status.outcome not in RESUMABLE:
            problem = f"which ended as {status.outcome} ({status.reason.rstrip('.')})"
        else:
            return
        raise ZeusConfigError(
            f"the checkpoint belongs to {self}, {problem}; start a new trial without the checkpoint"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values only: checkpoints are read with `weights_only=True`."""
        return asdict(self) | {"spent": {k: float(v) for k, v in asdict(self.spent).items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the values of `to_json`; unknown ones are ignored."""
        messages = {
            "job": JobSpec.from_json(data["job"]),
            "trial": TrialStart.from_json(data["trial"]),
            "hardware": Hardware.from_json(data["hardware"]),
            "report": None if data["report"] is None else Report.from_json(data["report"]),
            "spent": Reading(**known_fields(Reading, data["spent"])),
            "unsent": list(map(Report.from_json, data["unsent"])),
        }
        return cls(**known_fields(cls, data) | messages)

    def write(self, path: Path) -> None:
        """Write the record as JSON, replacing the file as a whole.

        A file that cannot be written is a warning.
        """
        from lightning.pytorch.utilities import rank_zero_warn  # the command line needs no torch

        path = path.resolve()
        if path.exists() and not path.is_file():
            rank_zero_warn(
                f"zeus: cannot write the outcome to {path}: it is not a regular file; set "
                "$ZEUS_OUTCOME_FILE to another path"
            )
            return
        try:
            replace_file(path, json.dumps(self.to_json()))
        except OSError as error:
            rank_zero_warn(
                f"zeus: the outcome file cannot be written: {error}; set $ZEUS_OUTCOME_FILE to a "
                "writable path"
            )

    @classmethod
    def remove(cls, path: Path) -> None:
        """Remove the file of an earlier run, if there is one."""
        if cls.read(path) is not None:
            with suppress(OSError):
                path.unlink()

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a file that `write` has written; None if there is none."""
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # of another kind
            return None


def epochs_text(epochs: int) -> str:
    """A number of epochs, in words."""
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


def energy_text(joules: float) -> str:
    """An energy or a cost in the units in which the service gives its reasons."""
    for unit, size_j in (("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3.6e3)):
        if joules >= size_j:
            return f"{joules / size_j:,.2f} {unit}"
    return f"{joules:.1f} J"


class ShowsTrial:
    """What a callback or a loop shows of its run's trial."""

    _client: BSOClient | None = None
    """The service; None before the run starts."""

    @property
    def job(self) -> JobSpec | None:
        """The job; None before the run starts."""
        raise NotImplementedError

    @property
    def trial(self) -> TrialStart | None:
        """The last run's trial: batch size, and why. None if there was none."""
        return self._record.trial if self._record else None

    @property
    def last_report(self) -> Report | None:
        """The trial's last report: epoch, seconds, joules, metric. None before the first."""
        return self._record.report if self._record else None

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs.

        `lost`: the service became unavailable, and still was when training ended.
        """
        return self._record.outcome if self._record else None

    @property
    def cost_j(self) -> float | None:
        """The cost at `last_report`, in joules."""
        return self._record.cost_j if self._record else None

    @property
    def _record(self) -> TrialRecord | None:
        raise NotImplementedError


def temporary_file() -> Path:
    """The path of a new file for a record that no other process uses; it is not made."""
    return Path(tempfile.gettempdir()) / f"zeus-{uuid4().hex}.json"


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
