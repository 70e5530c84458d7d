"""A trial in a checkpoint: what is kept there, and whether it can be taken up again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import JobSpec, Report, TrialStart, TrialStatus
from zeus_lightning.meters import Reading
from zeus_lightning.recurrence import Recurrence
from zeus_lightning.trial import Trial

_RESUMABLE = (None, "interrupted", "errored", "lost")


@dataclass(frozen=True)
class SavedTrial:
    """A trial at the moment of a checkpoint.

    Args:
        recurrence: What was known of the run; it has a trial.
        spent: Joules and seconds by then.
        unsent: Reports that the service had not heard.
    """

    recurrence: Recurrence
    spent: Reading
    unsent: tuple[Report, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values only: checkpoints are read with `weights_only=True`."""
        return {
            "recurrence": self.recurrence.to_json(),
            "energy_j": float(self.spent.energy_j),
            "time_s": float(self.spent.time_s),
            "unsent": [report.to_json() for report in self.unsent],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            Recurrence.from_json(data["recurrence"]),
            Reading(data["energy_j"], data["time_s"]),
            tuple(map(Report.from_json, data["unsent"])),
        )

    def __str__(self) -> str:
        return f"trial {self.trial.trial_number} of job {self.recurrence.job.job_id!r}"

    @property
    def trial(self) -> TrialStart:
        """What it was started with."""
        assert self.recurrence.trial is not None
        return self.recurrence.trial

    @property
    def batch_size(self) -> int:
        """What it trains with, as the service speaks of it."""
        return self.trial.batch_size

    def is_of(self, other: Recurrence) -> bool:
        """Whether another recurrence has this very trial."""
        return other.trial is not None and (
            (other.trial.job_id, other.trial.trial_number)
            == (self.trial.job_id, self.trial.trial_number)
        )

    def open(self, client: BSOClient, heard: int) -> Trial:
        """The trial, to go on with.

        Args:
            client: The service.
            heard: Sequence number of the last report that it has: those after a checkpoint too,
                which the resumed run makes again with other figures.
        """
        unsent = [report for report in self.unsent if report.sequence > heard]
        last = max([heard, *(report.sequence for report in unsent)])
        return Trial(client, self.trial, last, unsent)

    def check(self, job: JobSpec, known: TrialStatus | None) -> int:
        """Check that the trial can be taken up again.

        Args:
            job: The job of the run that loads the checkpoint.
            known: The trial as the service knows it.

        Returns:
            The sequence number of the last report that the service has heard.

        Raises:
            ZeusConfigError: It belongs to another job, is unknown, or has ended for good.
        """
        anew = (
            "; to start a new trial from its weights, load them into the module and call fit() "
            "without ckpt_path; to train on without the service, remove this callback"
        )
        if self.recurrence.job.job_id != job.job_id:
            raise ZeusConfigError(f"the checkpoint is of {self}, and this is {job.job_id!r}{anew}")
        if known is None or known.batch_size != self.batch_size:
            raise ZeusConfigError(
                f"the checkpoint is of {self}, which the service does not know{anew}"
            )
        if known.outcome not in _RESUMABLE:
            raise ZeusConfigError(
                f"the checkpoint is of {self}, which has ended as {known.outcome} "
                f"({known.reason.rstrip('.')}){anew}"
            )
        return known.reports


def take_up(client: BSOClient, job: JobSpec, saved: SavedTrial, *, in_place_of: Trial) -> int:
    """Withdraw the trial that a start has begun, and ask for the one to go on with.

    Returns:
        The sequence number of the last report of it that the service has heard.

    Raises:
        ZeusConfigError: It belongs to another job, is unknown, or has ended for good.
        ZeusServiceError: The service cannot be asked.
    """
    in_place_of.end_at_once("withdrawn", f"the run goes on with {saved}")
    known = client.trial_status(job.job_id, saved.trial.trial_number)
    return saved.check(job, known)
