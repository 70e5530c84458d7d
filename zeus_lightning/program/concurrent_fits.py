"""Refuse one callback object in two Trainers that train at the same time."""

from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError


def check_alone(trainer: Trainer, *, earlier: Trainer) -> None:
    """Raise a `ZeusConfigError` if another Trainer, which had the callback earlier, is training."""
    if trainer is not earlier and earlier.state.status == "running":
        raise ZeusConfigError(
            "this callback object is at work in another Trainer that is training: give each "
            "Trainer a callback of its own"
        )
