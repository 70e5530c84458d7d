"""Read the metric that a job monitors."""

import inspect
import re
from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError

_LIBRARIES = ("builtins", "lightning", "pytorch_lightning", "torch", "zeus_lightning")


def check_after_sanity_check(trainer: Trainer, monitor: str) -> None:
    """Raise a `ZeusConfigError` if the sanity check shows that no validation logs the metric.

    A metric that the sanity check has not logged may still come: a module may skip it there, a
    metric of training comes later, and with several dataloaders Lightning adds the suffixes
    `/dataloader_idx_N` to names in later validations only. `monitored` judges these at the first
    validation's end.
    """
    logged, loaders = trainer.callback_metrics, len(trainer.num_sanity_val_batches)
    suffix = re.search(r"/dataloader_idx_(\d+)$", monitor)
    if suffix is not None and monitor not in logged:
        if loaders == 1 or int(suffix[1]) >= loaders:
            raise ZeusConfigError(
                f"monitor is {monitor!r}, but there are {loaders} validation dataloaders; "
                "Lightning counts them from 0, and adds no suffix where there is only one"
            )
    elif logged and "train" not in monitor and not _may_log_later(trainer, monitor):
        monitored(trainer, monitor)


def _may_log_later(trainer: Trainer, monitor: str) -> bool:
    """Whether the program's code has the metric's name or looks at `sanity_checking`."""
    words = ("sanity_checking", f'"{monitor}"', f"'{monitor}'")
    try:
        return any(word in source for source in _sources(trainer) for word in words)
    except (OSError, TypeError):  # no source, as for a class typed into an interpreter
        return True


def _sources(trainer: Trainer) -> Iterator[str]:
    """Yield the source of each class of the module and the callbacks, but not of libraries."""
    for part in (trainer.lightning_module, *trainer.callbacks):  # type: ignore[attr-defined]
        for cls in type(part).__mro__:
            if cls.__module__.partition(".")[0] not in _LIBRARIES:
                yield inspect.getsource(cls)


def monitored(trainer: Trainer, monitor: str, target: float | None = None) -> float:
    """The latest value of a metric, rounded to its shortest float32 representation.

    In half precision, the value nearest to the target counts as the target.
    """
    metric = trainer.callback_metrics.get(monitor)
    if metric is None:
        message = (
            f"monitor is {monitor!r}, but the metrics logged so far are "
            f"{sorted(trainer.callback_metrics)}; log it with self.log(), or monitor one of these"
        )
        if trainer.sanity_checking:
            message += "; one that only later validations log needs Trainer(num_sanity_val_steps=0)"
        raise ZeusConfigError(message)
    for name, half in (("bf16", torch.bfloat16), ("16", torch.float16)):
        # Lightning converts it to float32: 0.95 in bfloat16 becomes 0.94921875
        if target is None or not str(trainer.precision).startswith(name):
            continue
        if metric.item() == torch.tensor(target, dtype=half).item():
            return target
    # 0.95 in single precision is 0.94999999, which would miss a target of 0.95
    single = metric.dtype == torch.float32
    return float(str(np.float32(metric.item()))) if single else float(metric)
