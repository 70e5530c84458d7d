"""Whether a run that has reached its target has saved its model."""

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn


def warn_of_unsaved_model(trainer: Trainer) -> None:
    """Warn if the Trainer saves checkpoints, but training ended before the first one was due."""
    savers = [
        each
        for each in trainer.callbacks  # type: ignore[attr-defined]
        if type(each).__name__ == "ModelCheckpoint" and (each.save_top_k or each.save_last)
    ]
    if savers and not any(each.best_model_path or each.last_model_path for each in savers):
        rank_zero_warn(
            "zeus: the run has reached its target before ModelCheckpoint saved a checkpoint, so "
            "its model is lost with this process; pass save_last=True, or save after each epoch"
        )
