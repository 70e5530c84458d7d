"""Read the metric that a job monitors, and find its name and mode in the program."""

import re
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.internals import training_log

Mode = Literal["min", "max"]

_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}

# Words in metric names, after an optional stage and before optional digits: valloss, acc5, top1.
_STAGE = "(val|valid|validation|test|train|dev|eval)?"
_FALLING = re.compile(
    _STAGE + r"((?!neg)\w*loss(es)?|err(ors?)?|perplexity|ppl|r?mse|r?msle|mae|s?mape|mase|nll|bce|"
    r"ce|ece|xent|crossentropy|kld?|kldiv|huber|hinge|brier|wer|cer|eer|bpc|bpd|fid|lpips)\d*"
)
_RISING = re.compile(
    _STAGE + r"(acc|accuracy|auc|auroc|auprc|f1|f1score|fbeta|precision|recall|sensitivity|"
    r"specificity|m?iou|jaccard|dice|m?ap|ndcg|mrr|bleu|sacrebleu|rouge|meteor|chrf|psnr|ssim|mcc|"
    r"kappa|r2)\d*"
)
_RISING_ALONE = re.compile(_STAGE + r"top\d+")  # but not in top1_error
_INVERTING = re.compile("neg|negative|minus|inverse|reduction|improvement|drop|gap")


def shortest_decimal(number: Any) -> float:
    """A number as it is printed, such as 0.95 for the float32 that is exactly 0.949999988.

    So a float32 metric of 0.95 reaches a target of 0.95. Takes numbers of numpy and torch.
    """
    if isinstance(number, torch.Tensor) and number.dtype in _NUMPY:
        number = _NUMPY[number.dtype](number.item())
    elif isinstance(number, np.ndarray):
        number = number.reshape(())[()]
    return float(str(number)) if isinstance(number, np.floating) else float(number)


def monitored(trainer: Trainer, monitor: str) -> float:
    """The latest value of a metric, as its shortest decimal.

    Raises:
        ZeusConfigError: The metric was not logged, or training logs it for each batch alone.
    """
    metric = trainer.callback_metrics.get(monitor)
    if metric is None and not trainer.callback_metrics:
        raise ZeusConfigError(
            f"monitor is {monitor!r}, but nothing has been logged for an epoch; call "
            f"self.log({monitor!r}, ..., on_epoch=True) in validation_step(), or without "
            "validation in training_step()"
        )
    if metric is None:
        raise ZeusConfigError(
            f"monitor is {monitor!r}, but the metrics logged so far are "
            f"{sorted(trainer.callback_metrics)}; call self.log({monitor!r}, ..., "
            "on_epoch=True) in each validation, or monitor one of these"
        )
    log = training_log(trainer, monitor)
    if log is not None and log.on_step and monitor == log.forked_name(on_step=True):
        raise ZeusConfigError(
            f"monitor is {monitor!r}, which training logs for each batch, so its value is the last "
            f"batch's; pass on_step=False, on_epoch=True to self.log({log.name!r}, ...)"
        )
    return shortest_decimal(metric)


def is_of_batches(trainer: Trainer, monitor: str) -> bool:
    """Whether a metric is the last training batch's until the epoch ends, and then its mean."""
    log = training_log(trainer, monitor)
    return log is not None and log.forked


def monitor_of(trainer: Trainer, monitor: str | None, mode: Mode | None) -> tuple[str | None, Mode]:
    """The metric to monitor, or None, and its mode: those given, else the Trainer's.

    They come from the first `EarlyStopping` that names a metric, or else `ModelCheckpoint`; a mode
    that neither gives, from the metric's name.
    """
    found: list[tuple[str, Mode]] = [
        (callback.monitor, callback.mode)
        for name in ("EarlyStopping", "ModelCheckpoint")
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if name in [each.__name__ for each in type(callback).__mro__]
        and callback.monitor not in (None, "epoch", "step")
    ]
    if monitor is None and found:
        monitor = found[0][0]
    usual = None if monitor is None else mode_of_name(monitor)
    return monitor, mode or dict(reversed(found)).get(str(monitor)) or usual or "max"


def no_monitor(trainer: Trainer) -> ZeusConfigError:
    """The error of a program that names no metric, once a validation has logged some."""
    names = sorted(name for name in trainer.callback_metrics if not name.startswith("zeus/"))
    copies = {f"{name}_{kind}" for name in names for kind in ("step", "epoch")}  # of on_step=True
    logged = " or ".join(f"monitor={name!r}" for name in names if name not in copies)
    remedy = f"pass {logged}"
    if not names:
        remedy = (
            "and nothing has been logged for an epoch; call self.log(NAME, ..., on_epoch=True) in "
            "validation_step(), and pass monitor=NAME"
        )
    return ZeusConfigError(
        "no metric to monitor: neither an EarlyStopping nor a ModelCheckpoint of the Trainer names "
        f"one; {remedy}"
    )


def mode_of_name(monitor: str) -> Mode | None:
    """The mode in which a metric of this name improves; None if the name does not show it."""
    if monitor.startswith(("-", "1-", "1 -")):
        return None
    words = _words(monitor)
    if any(map(_INVERTING.fullmatch, words)):
        return None
    falling, rising = any(map(_FALLING.fullmatch, words)), any(map(_RISING.fullmatch, words))
    if falling != rising:
        return "min" if falling else "max"
    return "max" if not falling and any(map(_RISING_ALONE.fullmatch, words)) else None


def _words(monitor: str) -> list[str]:
    """A name's words in lower case, and each pair of neighbors as one: top_1, cross-entropy."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", monitor)  # F1Score; but mIoU is one word
    parts = [re.findall("[a-z0-9]+", name.lower()) for name in (spaced, monitor)]
    return [*parts[0], *parts[1], *(f"{one}{two}" for one, two in pairwise(parts[0]))]
