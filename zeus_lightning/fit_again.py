"""`fit`: train again, in one process, until a batch size reaches the target."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.errors import ZeusConfigError, ZeusTrialFailed
from zeus_lightning.messages import FAILED


def fit(
    make_trainer: Callable[[], Trainer],
    make_module: Callable[[], LightningModule],
    make_datamodule: Callable[[], LightningDataModule] | None = None,
    *,
    retries: int = 20,
    **arguments: Any,
) -> Trainer:
    """Train until a trial does not fail, each time with a new Trainer, module and datamodule.

    A trial has failed if `Trainer.fit` raises `ZeusTrialFailed`, runs out of memory, has too few
    batches in an epoch, or returns after a failure with `raise_on_failure=False`. Any other error
    is raised. A control trial or a baseline that fails is not retried: it would fail again.

    Args:
        make_trainer: Makes a Trainer with a new `ZeusBSOCallback`.
        make_module: Makes the module.
        make_datamodule: Makes the datamodule; without it, the module or `arguments` provide the
            dataloaders.
        retries: Maximum number of trials after the first.
        **arguments: Passed to `Trainer.fit`; `ckpt_path`, only for the first trial, resumes it.

    Returns:
        The Trainer of the trial that did not fail. Its callback's `outcome` says how that trial
        ended: usually `converged`, or for example `completed` for a baseline.

    Raises:
        ZeusTrialFailed: The last trial also failed. If another error ended it, that is the cause.
        ZeusConfigError: A Trainer has no `ZeusBSOCallback`, or is not new.
    """
    attempt = 0
    while True:
        attempt += 1
        trainer = make_trainer()
        callback = _callback(trainer)
        datamodule = None if make_datamodule is None else make_datamodule()
        error: Exception | None = None
        try:
            trainer.fit(make_module(), datamodule=datamodule, **arguments)
        except Exception as raised:
            if not (isinstance(raised, ZeusTrialFailed) or callback.failed_by_error):
                raise
            error = raised
        if error is None and callback.outcome not in FAILED:
            return trainer
        trial = callback.trial
        if attempt > retries or (trial is not None and not trial.is_chosen):
            if isinstance(error, ZeusTrialFailed):
                raise error
            raise ZeusTrialFailed(
                f"the target was not reached (trials: {attempt}); the last trial, with batch size "
                f"{callback.batch_size}, ended as {callback.outcome}; check the target and "
                "the program"
            ) from error
        arguments.pop("ckpt_path", None)  # its trial has ended
        del trainer, callback, datamodule, error  # they refer to each other, and to the module
        gc.collect()  # the failed trial's memory, of which the next one may need more
        torch.cuda.empty_cache()


def _callback(trainer: Trainer) -> ZeusBSOCallback:
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    callback = next((each for each in callbacks if isinstance(each, ZeusBSOCallback)), None)
    if callback is None:
        raise ZeusConfigError("the Trainer has no ZeusBSOCallback; add one to its callbacks")
    if trainer.global_step or callback.trial is not None:
        raise ZeusConfigError(
            "make_trainer() returned a Trainer or callback that has trained before; create new "
            "ones in each call"
        )
    return callback
