"""What the search for a power limit asks of the loop that trains: Lightning's, or one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lightning.pytorch.strategies import Strategy

if TYPE_CHECKING:
    from zeus_lightning.client import BSOClient
    from zeus_lightning.messages import JobSpec, TrialStart


class Recurring(Protocol):
    """A run of a recurring job: `ZeusBSOCallback` or `Recurrence`; None while it has no trial."""

    @property
    def _client(self) -> BSOClient | None:
        """The service."""

    @property
    def job(self) -> JobSpec | None:
        """The job."""

    @property
    def trial(self) -> TrialStart | None:
        """The trial."""


class Loop(Protocol):
    """A training loop, as the search for a power limit sees it; the same on all ranks."""

    @property
    def strategy(self) -> Strategy:
        """Its ranks."""

    @property
    def recurring(self) -> Recurring | None:
        """The run of a recurring job that it is, if any."""

    def global_batch_size(self) -> int | None:
        """Return the batch size over all ranks; None if it is unknown, or changes."""

    def batches_done(self) -> int:
        """Return the number of batches that were trained so far."""

    def batches_left(self) -> float:
        """Return the batches until training ends; infinite if that is unknown."""

    def batches_per_report(self) -> float:
        """Return the batches from one report to the service to the next; infinite if unknown."""

    def saves(self) -> tuple[int, ...]:
        """Return something that changes whenever a checkpoint is written without notice."""

    def log(self, metrics: dict[str, float]) -> None:
        """Log metrics at the batch that was trained last."""
