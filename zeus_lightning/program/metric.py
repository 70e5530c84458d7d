"""Find the name and the mode of the metric that a job monitors."""

import re
from typing import Literal

from lightning.pytorch import Trainer

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.program.internals import name_of_batch_metric

Mode = Literal["min", "max"]

# Words in metric names.
_FALLING = re.compile(
    "loss|losses|error|err|perplexity|ppl|mae|mse|rmse|mape|nll|bce|ce|kl|wer|cer|fid"
)
_RISING = re.compile(
    "acc|accuracy|auc|auroc|f1|precision|recall|iou|miou|dice|map|ap|bleu|rouge|r2"
)
_INVERTING = re.compile("neg|negative|minus|inverse|reduction|improvement|drop|gap")


def monitor_of(
    trainer: Trainer, monitor: str | None, mode: Mode | None
) -> tuple[str | None, Mode | None]:
    """The metric to monitor and its mode, each None if unknown: those given, else the Trainer's.

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
    return monitor, mode or dict(reversed(found)).get(str(monitor)) or usual


def check_logged(trainer: Trainer, monitor: str) -> None:
    """Raise a `ZeusConfigError` unless the program has logged the metric, not for a batch alone.

    The error says how to log it, or what to monitor instead.
    """
    if monitor not in trainer.callback_metrics:
        logged = _epoch_metrics(trainer)
        step = "validation_step()"
        if not trainer.enable_validation:
            step = "training_step(), since there is no validation"
        remedy = f"call self.log({monitor!r}, ..., on_epoch=True) in {step}"
        if not logged:
            raise ZeusConfigError(
                f"monitor is {monitor!r}, but no epoch metric was logged; {remedy}"
            )
        raise ZeusConfigError(
            f"monitor is {monitor!r}, but the epoch metrics logged are {logged}; pass one of these "
            f"as monitor=... to ZeusBSOCallback, or {remedy}"
        )
    name = name_of_batch_metric(trainer, monitor)
    if name is not None:
        raise ZeusConfigError(
            f"monitor is {monitor!r}, which training logs for each batch, so its value is the last "
            f"batch's; pass on_step=False, on_epoch=True to self.log({name!r}, ...)"
        )


def no_monitor(trainer: Trainer) -> ZeusConfigError:
    """The error of a program that names no metric, once a validation has logged some."""
    logged, of_epochs = _metrics(trainer), _epoch_metrics(trainer)
    mode = {name: "" if mode_of_name(name) else " (with mode='min' or 'max')" for name in logged}
    choices = " or ".join(f"{name!r}{mode[name]}" for name in of_epochs or logged)
    if not of_epochs:
        return ZeusConfigError(
            "no metric to monitor: no epoch metric was logged; call self.log(NAME, ..., "
            "on_epoch=True), and pass monitor=NAME to ZeusBSOCallback"
            + (f"; logged for each batch: {choices}" if logged else "")
        )
    return ZeusConfigError(
        "no metric to monitor: no EarlyStopping or ModelCheckpoint names one; "
        f"pass monitor={choices} to ZeusBSOCallback"
    )


def _epoch_metrics(trainer: Trainer) -> list[str]:
    """The metrics that the program has logged, without those whose value is a single batch's."""
    return [name for name in _metrics(trainer) if name_of_batch_metric(trainer, name) is None]


def _metrics(trainer: Trainer) -> list[str]:
    """The metrics that the program has logged, without the copies that `on_step=True` makes."""
    names = sorted(name for name in trainer.callback_metrics if not name.startswith("zeus/"))
    copies = {f"{name}_{kind}" for name in names for kind in ("step", "epoch")}
    return [name for name in names if name not in copies]


def mode_of_name(monitor: str) -> Mode | None:
    """The mode in which a metric of this name improves; None if the name does not show it.

    A name's words are separated by capitals or punctuation, and end before digits: `F1Score`,
    `val/acc5`.
    """
    split_at_capitals = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", monitor)
    words = re.findall("f1|r2|[a-z]+", f"{split_at_capitals} {monitor}".lower())
    falls, rises, inverts = (
        any(map(kind.fullmatch, words)) for kind in (_FALLING, _RISING, _INVERTING)
    )
    if falls == rises or inverts or monitor.startswith(("-", "1-", "1 -")):
        return None
    return "min" if falls else "max"
