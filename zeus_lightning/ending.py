"""How a run ended, read from what ended it."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.memory import is_cuda_out_of_memory, is_out_of_cpu_memory

from zeus_lightning.errors import ZeusError
from zeus_lightning.messages import Outcome


def out_of_time(trainer: Trainer) -> bool:
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
    told = bool(exception.args) and isinstance(exception.args[0], str)  # what Lightning reads
    if told and (is_cuda_out_of_memory(exception) or is_out_of_cpu_memory(exception)):
        return "out_of_memory"
    return "withdrawn" if isinstance(exception, ZeusError) else "errored"


def text_of(exception: BaseException) -> str:
    """An exception as the service can keep it, whatever it holds."""
    name = type(exception).__name__
    try:
        text = f"{name}: {exception}"
    except Exception:  # noqa: BLE001 - a broken __str__ is the user's, and not what ended the run
        return name
    return text.encode("utf-8", "replace").decode().replace("\0", " ")
