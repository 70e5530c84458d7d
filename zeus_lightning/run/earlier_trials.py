"""What a job's earlier trials add to the warnings about its target."""

from __future__ import annotations

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.client import BSOClient
from zeus_lightning.errors import ZeusServiceError
from zeus_lightning.messages import TrialStatus
from zeus_lightning.program.metric import out_of_reach, reached_at_once
from zeus_lightning.run.ranks import on_rank_zero
from zeus_lightning.run.record import TrialRecord

_TIMEOUT_S = 2.0


def warn_of_target(strategy: Strategy, client: BSOClient, record: TrialRecord) -> None:
    """Warn if a trial's first report, the same on all ranks, shows a likely mistake in the target.

    Once a trial of the job has converged, this warns no more. If warnings are errors, all ranks
    raise it.
    """
    monitor, target = record.job.monitor, record.job.target_metric
    if record.report is None or target is None:
        return
    metric = record.report.metric
    if record.target_reached:
        mistake = reached_at_once(monitor, record.job.mode, target, metric)
    else:
        mistake = out_of_reach(monitor, record.job.mode, target, metric, metric)
    if mistake is None:
        return

    def warn() -> None:
        if all(each.outcome != "converged" for each in earlier_trials(client, record)):
            rank_zero_warn(f"zeus: {mistake}")

    on_rank_zero(strategy, warn)


def earlier_trials(client: BSOClient, record: TrialRecord) -> list[TrialStatus]:
    """The job's earlier trials; none if the service does not answer."""
    number = record.trial.trial_number
    if number == 1:
        return []
    try:
        return client.without_retries(_TIMEOUT_S).earlier_trials(record.trial.job_id, number)
    except ZeusServiceError:
        return []
