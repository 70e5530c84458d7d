"""Which modules a job has trained in this process: the next fit of one is no run from scratch."""

from weakref import WeakKeyDictionary

import torch
from lightning.pytorch import LightningModule

_trained: WeakKeyDictionary[LightningModule, dict[str, list[str]]] = WeakKeyDictionary()


def remember(module: LightningModule, job_id: str) -> None:
    """Remember that a fit of a job has trained a module."""
    _trained.setdefault(module, {})[job_id] = _weights(module)


def is_trained(module: LightningModule, job_id: str) -> bool:
    """Whether a fit of this job has trained the module, and its weights are as that left them."""
    weights = _trained.get(module, {}).get(job_id)
    return bool(weights) and weights == _weights(module)


@torch.no_grad()
def _weights(module: LightningModule) -> list[str]:
    """The sum of each parameter, as text, in which NaN equals NaN.

    Not of those that are shards of distributed tensors: their sum would be a collective.
    """
    parameters = (each.detach() for each in module.parameters())
    whole = (each for each in parameters if type(each) is torch.Tensor)
    return [repr(each.sum(dtype=torch.float64).item()) for each in whole]
