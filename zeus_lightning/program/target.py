"""Find likely mistakes in a job's target: a `mode` that was forgotten, a target in another unit."""

import re
from typing import Literal

Mode = Literal["min", "max"]

# Words of metrics' names; digits may follow, as in acc5.
_FALLING = re.compile(
    r"(loss(es)?|err(ors?)?|perplexity|ppl|r?mse|msle|mae|mape|nll|bce|crossentropy|logloss|brier|"
    r"wer|cer|eer|bpc|fid)\d*"
)
_RISING = re.compile(
    r"(acc|accuracy|auc|auroc|auprc|f1|f1score|fbeta|precision|recall|sensitivity|specificity|"
    r"m?iou|jaccard|dice|map|ndcg|mrr|bleu|rouge|psnr|ssim)\d*"
)
_INVERTING = re.compile("neg|negative|minus|inverse|reduction|improvement|drop|gap")


def mode_of_name(monitor: str) -> Mode | None:
    """The mode in which a metric of this name improves; None if the name does not show it."""
    if monitor.startswith(("-", "1-", "1 -")):
        return None
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", monitor)  # F1Score; but mIoU is one word
    words = re.split(r"[^a-z0-9]+", f"{spaced} {monitor}".lower())
    if any(map(_INVERTING.fullmatch, words)):
        return None
    falling, rising = any(map(_FALLING.fullmatch, words)), any(map(_RISING.fullmatch, words))
    if falling == rising:
        return None
    return "min" if falling else "max"


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


def reached_at_once(monitor: str, mode: Mode, target: float, metric: float) -> str:
    """A warning about a first validation that already reaches the target."""
    text = (
        f"the first validation already reaches the target: {monitor} is {metric:.6g}, and mode="
        f"{mode!r} with target_metric={target:g} asks for "
        f"{'at least' if mode == 'max' else 'at most'} that. "
    )
    usual = mode_of_name(monitor)
    if usual != mode:
        other: Mode = "min" if mode == "max" else "max"
        text += f"If it should {_verb(other)}, pass mode={other!r}, with a new job_id"
    elif mode == "max" and target <= 1 < metric <= 100:
        text += f"If it is in percent, pass target_metric={100 * target:g}, with a new job_id"
    else:
        text += "If you did not expect this, pass another target_metric, with a new job_id"
    return text


def out_of_reach(
    monitor: str, mode: Mode, target: float, lowest: float, highest: float
) -> str | None:
    """The likely mistake if no value like those so far, from `lowest` to `highest`, reaches it."""
    so_far = f"every value of {monitor} so far is between {lowest:.6g} and {highest:.6g}"
    if mode == "max" and 10 <= target <= 100 and lowest >= 0 and 0 < highest <= 1:
        return (
            f"target_metric is {target:g}, but {so_far}: if it is a fraction, at most 1, pass "
            f"target_metric={target / 100:g} and a new job_id"
        )
    if mode == "min" and target < 0 <= lowest:
        return (
            f"target_metric is {target:g}, but {so_far}: if it cannot be negative, pass another "
            "target_metric and a new job_id"
        )
    return None


def _verb(mode: Mode) -> str:
    return "fall" if mode == "min" else "rise"
