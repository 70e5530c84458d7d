"""Read the metric that a job monitors."""

import re

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.printed_number import as_printed

_SUFFIX = re.compile(r"/dataloader_idx_(\d+)$")


def look_after_sanity_check(trainer: Trainer, monitor: str) -> None:
    """Log a line if the sanity check has not logged the metric; the first validation decides.

    No metric is certain to be missing then, too: a module may skip any of them in the sanity check,
    a metric of training comes later, and with several dataloaders Lightning adds the suffixes
    `/dataloader_idx_N` to names in later validations only.
    """
    logged = sorted(trainer.callback_metrics)
    if monitor in logged:
        return
    if mistake := _no_such_dataloader(trainer, monitor):
        rank_zero_warn(f"zeus: monitor is {monitor!r}, but {mistake}")
    elif logged and _SUFFIX.search(monitor) is None:
        rank_zero_info(
            f"zeus: the sanity check has logged {logged}, but not monitor={monitor!r}; unless the "
            "first epoch with a validation logs it, that is an error"
        )


def _no_such_dataloader(trainer: Trainer, monitor: str) -> str:
    """What is wrong with the name of a dataloader that does not exist; else an empty text."""
    loaders, suffix = len(trainer.num_val_batches), _SUFFIX.search(monitor)
    if suffix is None or (loaders > 1 and int(suffix[1]) < loaders):
        return ""
    return (
        f"the number of validation dataloaders is {loaders}: Lightning counts them from 0, and "
        "adds a suffix only if there are several"
    )


def monitored(trainer: Trainer, monitor: str, target: float) -> float:
    """The latest value of a metric, rounded to its shortest float32 representation.

    In half precision, the value nearest to the target counts as the target.
    """
    metric = trainer.callback_metrics.get(monitor)
    if metric is None:
        message = (
            f"monitor is {monitor!r}, but the metrics logged so far are "
            f"{sorted(trainer.callback_metrics)}; log it in each validation with self.log(), and "
            "on_epoch=True, or monitor one of these"
        )
        if mistake := _no_such_dataloader(trainer, monitor):
            message += f"; {mistake}"
        raise ZeusConfigError(message)
    for name, half in (("bf16", torch.bfloat16), ("16", torch.float16)):
        # Lightning converts it to float32: 0.95 in bfloat16 becomes 0.94921875
        in_half = str(trainer.precision).startswith(name)
        if in_half and metric.item() == torch.tensor(target, dtype=half).item():
            return target
    return as_printed(metric)
