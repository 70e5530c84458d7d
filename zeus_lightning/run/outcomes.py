"""The outcome of a trial, derived from how its run ended: an exception, or the end of training."""

import asyncio
import re
import signal
from contextlib import suppress

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.memory import is_cuda_out_of_memory, is_out_of_cpu_memory
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from zeus_lightning.errors import ZeusError, ZeusTrialFailed
from zeus_lightning.messages import MAX_REASON, Outcome
from zeus_lightning.run.record import TrialRecord, epochs_text

_FROM_OUTSIDE = (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit)
"""What ends a run that is in order; SIGTERM is a SystemExit."""


def outcome_at_train_end(trainer: Trainer, record: TrialRecord) -> tuple[Outcome, str]:
    """The outcome of a trial that is still open when training ends, and why."""
    epochs = epochs_text(trainer.current_epoch)
    if _out_of_time(trainer):
        reason = f"max_time was reached after {epochs}"
        if record.job.target_metric is None:
            reason += (
                ", so this baseline counts only if it is resumed; if this happens again, pass "
                "target_metric"
            )
        return "interrupted", reason
    if record.report is None and trainer.should_stop:
        return "interrupted", "another callback stopped training before a validation"
    if record.report is None:
        reason = f"training ended after {epochs} without a validation"
        if _out_of_steps(trainer):
            reason = f"max_steps={trainer.max_steps} ended training without a validation"
        # With the default batch size, it may have one: epochs have other numbers of batches.
        is_default = record.trial.batch_size == record.job.default_batch_size
        return "errored" if is_default else "not_converged", reason
    if record.job.target_metric is None:
        return "completed", f"training ended after {epochs}"
    if record.target_reached:  # the last report was not sent yet; the service decides on it
        return "not_converged", "training ended before the service had decided"
    stopped = "another callback stopped training" if trainer.should_stop else "training ended"
    return "not_converged", f"{stopped} short of the target of {record.job.target_metric:g}"


def _out_of_time(trainer: Trainer) -> bool:
    """Whether a Timer, of either Lightning package, has run out."""
    timers = [each for each in trainer.callbacks if hasattr(each, "time_remaining")]  # type: ignore[attr-defined]
    remaining_s = [timer.time_remaining() for timer in timers]
    return any(seconds is not None and seconds <= 0 for seconds in remaining_s)


def _out_of_steps(trainer: Trainer) -> bool:
    return trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps


def outcome_of(exception: BaseException) -> Outcome:
    """The outcome of a trial whose run an exception ended."""
    if isinstance(exception, _FROM_OUTSIDE):
        return "interrupted"
    if isinstance(exception, torch.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(exception, ProcessRaisedException):
        return _outcome_of_text(_last_error(exception.msg))
    if isinstance(exception, ProcessExitedException):
        return "interrupted" if exception.signal_name in ("SIGINT", "SIGTERM") else "errored"
    # Lightning's functions read the first argument as a text
    readable = bool(exception.args) and isinstance(exception.args[0], str)
    if readable and (is_cuda_out_of_memory(exception) or is_out_of_cpu_memory(exception)):
        return "out_of_memory"
    return "withdrawn" if isinstance(exception, ZeusError) else "errored"


def is_trial_failure(exception: BaseException) -> bool:
    """Whether it is a `ZeusTrialFailed`, raised here or in a process that Lightning spawned."""
    if isinstance(exception, ProcessRaisedException):
        name = f"{ZeusTrialFailed.__module__}.{ZeusTrialFailed.__name__}"
        return _last_error(exception.msg).startswith(f"{name}:")
    return isinstance(exception, ZeusTrialFailed)


def reason_of(exception: BaseException) -> str:
    """The class and message of an exception, or SIGTERM, as text that can be sent and stored.

    The details that torch adds to an out-of-memory error are cut.
    """
    text = type(exception).__name__
    if isinstance(exception, SystemExit) and (
        text == "SIGTERMException" or exception.code == 128 + signal.SIGTERM
    ):
        return "by SIGTERM"
    process = ""
    if isinstance(exception, ProcessRaisedException):
        text, process = _last_error(exception.msg), f" (in process {exception.error_index})"
    else:
        with suppress(Exception):  # a broken __str__ is not what ended the run
            text = f"{text}: {exception}".removesuffix(": ")  # KeyboardInterrupt has no message
    text = text.partition(". Tried to allocate ")[0] + process
    return text.encode("utf-8", "replace").decode().replace("\0", " ")[:MAX_REASON]


def _last_error(traceback: str) -> str:
    """The error that a printed traceback ends with: its class and, if any, its message."""
    last = traceback.rpartition("Traceback (most recent call last):\n")[2]
    match = re.search(r"^\S.*\Z", last, re.MULTILINE | re.DOTALL)
    return match[0].strip() if match else traceback


def _outcome_of_text(error: str) -> Outcome:
    """The outcome of an exception that is printed as `error`, beginning with its class."""
    if error.startswith(f"{ZeusError.__module__}."):
        return "withdrawn"
    if re.match(r"torch\.(cuda\.)?OutOfMemoryError\b", error):
        return "out_of_memory"
    return outcome_of(RuntimeError(error))
