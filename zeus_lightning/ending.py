"""How a run ended, read from what ended it."""

from __future__ import annotations

import re

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.memory import is_cuda_out_of_memory, is_out_of_cpu_memory
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from zeus_lightning.errors import ZeusError
from zeus_lightning.messages import Outcome
from zeus_lightning.recurrence import Recurrence

_STOPPED = ("SIGINT", "SIGTERM")


def at_train_end(trainer: Trainer, recurrence: Recurrence) -> tuple[Outcome, str]:
    """The outcome of a trial that is still open when training ends, and why."""
    epochs = trainer.current_epoch
    if _out_of_time(trainer):
        return "interrupted", f"max_time was reached after {epochs} epochs"
    if recurrence.report is None and trainer.should_stop:
        return "interrupted", "another callback stopped it before a validation"
    if recurrence.report is None:
        return "withdrawn", f"no validation in {epochs} epochs"
    if recurrence.reached:
        return "not_converged", "the target is reached"  # unless reports are kept that tell it
    stopped = "another callback stopped it" if trainer.should_stop else "training ended"
    return "not_converged", f"{stopped}, short of the target"


def _out_of_time(trainer: Trainer) -> bool:
    """Whether a Timer, of whichever Lightning package, has run out."""
    remaining = (
        callback.time_remaining()
        for callback in trainer.callbacks  # type: ignore[attr-defined]
        if hasattr(callback, "time_remaining")
    )
    return any(time is not None and time <= 0 for time in remaining)


def outcome_of(exception: BaseException) -> Outcome:
    """The outcome of a trial whose run an exception ended."""
    if isinstance(exception, KeyboardInterrupt | SystemExit):  # SIGTERM is a SystemExit
        return "interrupted"
    if isinstance(exception, torch.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(exception, ProcessRaisedException):
        return _outcome_of_text(_last_error(exception.msg))
    if isinstance(exception, ProcessExitedException):
        return "interrupted" if exception.signal_name in _STOPPED else "errored"
    told = bool(exception.args) and isinstance(exception.args[0], str)  # what Lightning reads
    if told and (is_cuda_out_of_memory(exception) or is_out_of_cpu_memory(exception)):
        return "out_of_memory"
    return "withdrawn" if isinstance(exception, ZeusError) else "errored"


def text_of(exception: BaseException) -> str:
    """An exception as the service can keep it, whatever it holds."""
    name = type(exception).__name__
    if isinstance(exception, ProcessRaisedException):
        return _clean(f"{_last_error(exception.msg)} (in process {exception.error_index})")
    try:
        text = f"{name}: {exception}".removesuffix(": ")  # Ctrl-C says nothing
    except Exception:  # noqa: BLE001 - a broken __str__ is the user's, and not what ended the run
        return name
    return _clean(text)


def _last_error(traceback: str) -> str:
    """The error a printed traceback ends with: its class and, where it has one, its message."""
    last = traceback.rpartition("Traceback (most recent call last):\n")[2]
    match = re.search(r"^\S.*\Z", last, re.MULTILINE | re.DOTALL)
    return match[0].strip() if match else traceback


def _outcome_of_text(error: str) -> Outcome:
    name = re.match(r"[\w.]*", error)
    kind = name[0] if name else ""
    if kind.startswith(f"{ZeusError.__module__}."):
        return "withdrawn"
    told = RuntimeError(error)  # what Lightning reads
    if (
        kind in ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
        or is_cuda_out_of_memory(told)
        or is_out_of_cpu_memory(told)
    ):
        return "out_of_memory"
    return "errored"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", " ")
