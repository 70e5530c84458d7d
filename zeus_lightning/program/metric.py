"""Read the metric that a job monitors, and find likely mistakes in its name, mode and target."""

import re
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

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
_UNBOUNDED = re.compile(_STAGE + r"psnr")
"""A rising metric that may exceed 1; the others are at most 1, or 100 in percent."""


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
    return ZeusConfigError(
        "no metric to monitor: neither an EarlyStopping nor a ModelCheckpoint of the Trainer names "
        "one; pass " + (logged or "monitor=..., with the name of a metric that validation logs")
    )


def look_after_sanity_check(trainer: Trainer, monitor: str) -> None:
    """Log a line if the sanity check did not log the metric; the first validation decides.

    It may still come: a module may skip any metric in the sanity check, or name it after that
    stage, as pytorch-forecasting's `sanity_check_loss`; training metrics come later; and with
    several dataloaders Lightning adds the suffixes `/dataloader_idx_N` to names in later
    validations only.
    """
    logged = sorted(trainer.callback_metrics)
    is_of_another_stage = any(name.startswith("sanity_check") for name in logged)
    is_known = monitor in logged or "/dataloader_idx_" in monitor or is_of_another_stage
    if logged and not is_known:
        rank_zero_info(
            f"zeus: the sanity check logged {logged}, but not monitor={monitor!r}; training fails "
            "unless the first epoch with a validation logs it"
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


def _is_share(monitor: str) -> bool:
    """Whether a metric of this name is at most 1, or 100 in percent."""
    unbounded = any(map(_UNBOUNDED.fullmatch, _words(monitor)))
    return mode_of_name(monitor) == "max" and not unbounded


def contradiction(monitor: str, mode: Mode, target: float | None) -> str | None:
    """A warning if a metric's name contradicts `mode`."""
    usual = mode_of_name(monitor)
    if usual is None or usual == mode:
        return None
    side = "at least" if mode == "max" else "at most"
    ends = (
        ""
        if target is None
        else (f": any value of {side} {target:g} will end the training as converged")
    )
    return (
        f"mode is {mode!r}, but {monitor!r} looks like a metric that should "
        f"{_verb(usual)}{ends}; pass mode={usual!r} unless you mean this"
    )


def reached_at_once(monitor: str, mode: Mode, target: float, metric: float) -> str | None:
    """The likely mistake if the first validation already reaches the target.

    None if the name agrees with the mode: then the task is easy. But a share in percent reaches any
    target that is a fraction.
    """
    usual = mode_of_name(monitor)
    in_percent = mode == "max" and target <= 1 < metric <= 100
    if usual == mode and not (in_percent and _is_share(monitor)):
        return None
    text = (
        f"the first validation already reaches the target: {monitor} is {metric:.6g}, and mode="
        f"{mode!r} with target_metric={target:g} asks for "
        f"{'at least' if mode == 'max' else 'at most'} that. "
    )
    if usual == mode:
        return text + f"If it is in percent, pass target_metric={100 * target:g}, with a new job_id"
    other: Mode = "min" if mode == "max" else "max"
    return text + f"If it should {_verb(other)}, pass mode={other!r}, with a new job_id"


def out_of_reach(
    monitor: str, mode: Mode, target: float, lowest: float, highest: float
) -> str | None:
    """The likely mistake if no value like those so far, from `lowest` to `highest`, reaches it."""
    so_far = f"every value of {monitor} so far is between {lowest:.6g} and {highest:.6g}"
    likely = _is_share(monitor) or (10 <= target <= 100 and highest > 0)
    if mode == "max" and target > 1 and lowest >= 0 and highest <= 1 and likely:
        fraction = f"target_metric={target / 100:g}" if 10 <= target <= 100 else "a target below 1"
        return (
            f"target_metric is {target:g}, but {so_far}: if it is a fraction, at most 1, pass "
            f"{fraction} and a new job_id"
        )
    if mode == "min" and target < 0 <= lowest:
        return (
            f"target_metric is {target:g}, but {so_far}: if it cannot be negative, pass another "
            "target_metric and a new job_id"
        )
    return None


def _verb(mode: Mode) -> str:
    return "fall" if mode == "min" else "rise"
