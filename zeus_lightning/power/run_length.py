"""How many training batches a run takes to its target, as far as earlier trials tell."""

import math
from statistics import fmean

from zeus_lightning.errors import ZeusConfigError, ZeusServiceError
from zeus_lightning.power.loop import Loop

RECURRENCES = 10
"""How many runs to come are assumed to use a profile that is stored for them."""


def batches_to_target(loop: Loop) -> float:
    """Return how many batches earlier trials of the batch size took to the target, on average.

    Infinite if there is none, or the service does not answer. For rank zero alone.
    """
    recurring = loop.recurring
    if recurring is None or recurring.trial is None or recurring._client is None:
        return math.inf
    trial = recurring.trial
    try:
        earlier = recurring._client.earlier_trials(trial.job_id, trial.trial_number)
    except (ZeusServiceError, ZeusConfigError):
        return math.inf
    reports = [
        each.reports
        for each in earlier
        if each.outcome == "converged" and each.batch_size == trial.batch_size
    ]
    return fmean(reports) * loop.batches_per_report() if reports else math.inf
