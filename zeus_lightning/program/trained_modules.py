"""What a fit must know of others: which modules they trained, and which of them still trains."""

from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.errors import ZeusConfigError

_trained: WeakKeyDictionary[LightningModule, dict[str, list[str]]] = WeakKeyDictionary()


def check_alone(trainer: Trainer, *, earlier: Trainer) -> None:
    """Raise a `ZeusConfigError` if the Trainer that had this callback earlier is still training."""
    if trainer is not earlier and earlier.state.status == "running":
        raise ZeusConfigError(
            "this callback is in use by another Trainer that is training; create a callback for "
            "each Trainer"
        )


def remember(module: LightningModule, job_id: str) -> None:
    """Remember that a fit of a job trained a module."""
    _trained.setdefault(module, {})[job_id] = _weights(module)


def is_trained(module: LightningModule, job_id: str) -> bool:
    """Whether a fit of this job trained the module in this process, and its weights are unchanged.

    The next fit would not start from scratch.
    """
    weights = _trained.get(module, {}).get(job_id)
    return bool(weights) and weights == _weights(module)


def warn_of_unsaved_model(trainer: Trainer) -> None:
    """Warn if the Trainer saves checkpoints, but training ended before the first one was due."""
    savers = [
        each
        for each in trainer.callbacks  # type: ignore[attr-defined]
        if type(each).__name__ == "ModelCheckpoint" and (each.save_top_k or each.save_last)
    ]
    if savers and not any(each.best_model_path or each.last_model_path for each in savers):
        rank_zero_warn(
            "zeus: the run reached its target before ModelCheckpoint saved a checkpoint, so its "
            "model is lost with this process; pass save_last=True, or save after each epoch"
        )


@torch.no_grad()
def _weights(module: LightningModule) -> list[str]:
    """The sum of each parameter, as text, in which NaN equals NaN.

    Leaves out shards of distributed tensors: their sum would be a collective.
    """
    parameters = (each.detach() for each in module.parameters())
    whole = (each for each in parameters if type(each) is torch.Tensor)
    return [repr(each.sum(dtype=torch.float64).item()) for each in whole]
