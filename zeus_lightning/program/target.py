"""Find likely mistakes in a job's target: a `mode` that was forgotten, a target in another unit."""

import re
from itertools import pairwise
from typing import Literal

Mode = Literal["min", "max"]

# Words of metrics' names, with the stage before them and digits behind: valloss, acc5, top1.
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
"""Of the rising ones: any other is at most 1, or in percent."""


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
    """The words of a name in small letters, also each two as one: top_1, cross-entropy."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", monitor)  # F1Score; but mIoU is one word
    parts = [re.findall("[a-z0-9]+", name.lower()) for name in (spaced, monitor)]
    return [*parts[0], *parts[1], *(f"{one}{two}" for one, two in pairwise(parts[0]))]


def _is_share(monitor: str) -> bool:
    """Whether a metric of this name is at most 1, or 100 in percent."""
    unbounded = any(map(_UNBOUNDED.fullmatch, _words(monitor)))
    return mode_of_name(monitor) == "max" and not unbounded


def contradiction(monitor: str, mode: Mode, target: float) -> str | None:
    """A warning if a metric's name contradicts `mode`."""
    usual = mode_of_name(monitor)
    if usual is None or usual == mode:
        return None
    side = "at least" if mode == "max" else "at most"
    return (
        f"mode is {mode!r}, but {monitor!r} looks like a metric that should "
        f"{_verb(usual)}: any value of {side} {target:g} will end the training as converged; pass "
        f"mode={usual!r}, unless this is meant"
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
