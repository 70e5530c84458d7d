"""How many training batches a run has left, as far as its Trainer and earlier trials tell."""

import math
from statistics import fmean

from lightning.pytorch import Trainer

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.errors import ZeusConfigError, ZeusServiceError

RECURRENCES = 10
"""How many runs to come are assumed to use a profile that is stored for them."""


def batches_left(trainer: Trainer) -> float:
    """Return the training batches until `max_epochs` or `max_steps`; infinite if neither ends it.

    `max_time`, early stopping and a target reached may end it sooner.
    """
    epochs, steps = trainer.max_epochs, trainer.max_steps
    left = math.inf
    if epochs is not None and epochs >= 0:
        left = (epochs - trainer.current_epoch) * trainer.num_training_batches
    if steps >= 0:
        left = min(left, (steps - trainer.global_step) * trainer.accumulate_grad_batches)
    return max(0.0, left)


def batches_to_target(trainer: Trainer, bso: ZeusBSOCallback | None) -> float:
    """Return how many batches earlier trials of the batch size took to the target, on average.

    Infinite if there is none, or the service does not answer. For rank zero alone.
    """
    if bso is None or bso.trial is None or bso.client is None:
        return math.inf
    trial = bso.trial
    try:
        earlier = bso.client.earlier_trials(trial.job_id, trial.trial_number)
    except (ZeusServiceError, ZeusConfigError):
        return math.inf
    validations = [
        each.reports
        for each in earlier
        if each.outcome == "converged" and each.batch_size == trial.batch_size
    ]
    if not validations:
        return math.inf
    every = (trainer.val_check_batch or math.inf) * (trainer.check_val_every_n_epoch or 1)
    return fmean(validations) * every
