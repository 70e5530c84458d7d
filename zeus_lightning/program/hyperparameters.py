"""Log the batch size and learning rate that training uses."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.program.internals import logs_hyperparameters
from zeus_lightning.program.lr_scaling import base_rates


def log_hyperparameters(trainer: Trainer, module: LightningModule, batch_size: int) -> None:
    """Log `zeus/batch_size` and `zeus/lr`, together with the program's own hyperparameters.

    One call has all of them, before Lightning's: TensorBoard shows only the first call's.
    """
    if not (trainer.loggers and trainer.enable_autolog_hparams):
        return
    values: dict[str, Any] = {}
    for owner in (module, trainer.datamodule):  # type: ignore[attr-defined]
        if logs_hyperparameters(owner):
            values |= owner.hparams_initial
    values.pop("_class_path", None)  # LightningCLI's
    rates = sorted({float(f"{rate:.12g}") for rate in base_rates(trainer.optimizers)})
    values["zeus/batch_size"] = batch_size
    if rates:
        values["zeus/lr"] = rates[0] if len(rates) == 1 else ", ".join(map(str, rates))
    for logger in trainer.loggers:
        try:
            logger.log_hyperparams(values)
        except Exception as error:  # noqa: BLE001 - as MLflow's, if a run is used a second time
            rank_zero_warn(f"zeus: {type(logger).__name__} did not log hyperparameters: {error}")
