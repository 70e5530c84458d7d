"""`TrialRecord`: what a run records of its trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from zeus_lightning.messages import Hardware, JobSpec, Outcome, Report, TrialStart
from zeus_lightning.meters import Reading
from zeus_lightning.program.metric import Mode, out_of_reach


@dataclass(kw_only=True)
class TrialRecord:
    """A trial from its start to its end, as the run that trains it records it.

    Args:
        hardware: What it trains on.
        report: The last report; None before the first.
        lowest: The lowest metric of all reports; None before the first.
        highest: The highest one.
        outcome: How the trial ended; None while it runs.
        reason: Why it ended, in one sentence.
        profiled: Whether its cost includes measuring power limits.
    """

    job: JobSpec
    trial: TrialStart
    hardware: Hardware
    report: Report | None = None
    lowest: float | None = None
    highest: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    profiled: bool = False

    def reported(self, report: Report) -> None:
        """Record a report."""
        seen = [each for each in (self.lowest, self.highest) if each is not None]
        self.lowest, self.highest = min([*seen, report.metric]), max([*seen, report.metric])
        self.report = report

    @property
    def mode(self) -> Mode:
        """Whether the metric rises or falls to the target, as the callback's `mode`."""
        return "max" if self.job.higher_is_better else "min"

    @property
    def cost(self) -> float | None:
        """Cost at the last report in joules (Zeus: You, Chung and Chowdhury, NSDI 2023)."""
        if self.report is None:
            return None
        eta, time_j = self.job.eta_knob, self.hardware.max_power_w * self.report.time_s
        return eta * self.report.energy_j + (1 - eta) * time_j

    @property
    def target_reached(self) -> bool:
        """Whether the last report's metric reaches the job's target."""
        if self.report is None:
            return False
        metric, target = self.report.metric, self.job.target_metric
        return metric >= target if self.job.higher_is_better else metric <= target

    @property
    def spent(self) -> Reading:
        """Joules and seconds at the last report."""
        if self.report is None:
            return Reading(0.0, 0.0)
        return Reading(self.report.energy_j, self.report.time_s)

    def metrics(self) -> dict[str, float]:
        """The metrics to log; empty before the first report."""
        if self.report is None or self.cost is None:
            return {}
        return {
            "zeus/batch_size": float(self.trial.batch_size),
            "zeus/energy_j": self.report.energy_j,
            "zeus/time_s": self.report.time_s,
            "zeus/power_w": self.report.energy_j / max(self.report.time_s, 1e-9),
            "zeus/cost": self.cost,
        }

    def summary(self) -> str:
        """How the trial ended, in one line."""
        text = (
            f"trial {self.trial.trial_number} of job {self.job.job_id!r} with batch size "
            f"{self.trial.batch_size} ended as {self.outcome}: {self.reason.rstrip('.')}"
        )
        if self.report is not None:
            text += (
                f" ({self.job.monitor} {self.report.metric:.6g} after {self.report.epoch} epochs, "
                f"{self.report.time_s:.1f} s, {self.report.energy_j:.1f} J"
                f"{' (estimated)' if self.hardware.estimated else ''}, cost {self.cost:.1f} J"
                f"{', measuring power limits included' if self.profiled else ''})"
            )
        return text

    def failure(self, earlier: Sequence[float] = ()) -> str:
        """The summary of a trial whose batch size has failed, and what to do next.

        Args:
            earlier: Last metrics of the job's earlier trials, if all that were judged have failed.
        """
        text = f"{self.summary()}. Run the job again: it will try another batch size."
        if self.lowest is not None and self.highest is not None:
            target = self.job.target_metric
            mistake = out_of_reach(self.job.monitor, self.mode, target, self.lowest, self.highest)
            text += f" Check the target: {mistake}." if mistake else ""
        if earlier and self.report is not None:
            pick = max if self.job.higher_is_better else min
            text += (
                f" None of the job's {len(earlier) + 1} runs so far has reached the target of "
                f"{self.job.target_metric:g}; the best {self.job.monitor} that one ended with is "
                f"{pick(self.report.metric, *earlier):.6g}. If no batch size can reach the target, "
                "pass another target_metric, with a new job_id."
            )
        if self.outcome == "early_stopped":
            text += " If the job itself has become slower, pass a new job_id with window_size or "
            text += "beta_knob=None."
        if self.outcome == "out_of_memory":
            text += " At once or when that happens again, as its policy says, the service gives up "
            text += "this batch size and larger ones, unless they have converged before."
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a checkpoint or another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build from the values of `to_json`."""
        messages = {
            "job": JobSpec.from_json(data["job"]),
            "trial": TrialStart.from_json(data["trial"]),
            "hardware": Hardware.from_json(data["hardware"]),
            "report": None if data["report"] is None else Report.from_json(data["report"]),
        }
        return cls(**(data | messages))
