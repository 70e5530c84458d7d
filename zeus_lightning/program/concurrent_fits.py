"""Refuse one callback object in two Trainers that train at the same time."""

from lightning.pytorch import Trainer

IN_TWO_TRAINERS = (
    "this callback object is at work in another Trainer that is training: give each Trainer a "
    "callback of its own"
)


def is_running(trainer: Trainer, *, other_than: Trainer) -> bool:
    """Whether a Trainer is another one than the given, and is training."""
    return trainer is not other_than and trainer.state.status == "running"
