"""Which modules a job has trained in this process: the next fit of one is no run from scratch."""

from weakref import WeakKeyDictionary

from lightning.pytorch import LightningModule

_trained: WeakKeyDictionary[LightningModule, dict[str, list[int]]] = WeakKeyDictionary()


def remember(module: LightningModule, job_id: str) -> None:
    """Remember that a fit of a job has trained a module."""
    _trained.setdefault(module, {})[job_id] = _versions(module)


def is_trained(module: LightningModule, job_id: str) -> bool:
    """Whether a fit of this job has trained the module, whose weights nobody has set since."""
    versions = _trained.get(module, {}).get(job_id)
    return bool(versions) and versions == _versions(module)


def _versions(module: LightningModule) -> list[int]:
    """How often torch has changed each parameter in place."""
    return [parameter._version for parameter in module.parameters()]
