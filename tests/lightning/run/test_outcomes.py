"""How a run ended, read from what ended it: also where it happened in another process."""

from __future__ import annotations

import asyncio
import signal
import traceback

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from zeus_lightning import ZeusConfigError
from zeus_lightning.run.outcomes import outcome_of, reason_of


def raised_in_process(error: BaseException) -> ProcessRaisedException:
    """What torch's launcher raises for an error in its process 0."""
    try:
        try:
            int("first") if "chained" in str(error) else None
        except ValueError as cause:
            raise error from cause
        raise error
    except BaseException:  # noqa: BLE001 - as torch does
        text = f"\n\n-- Process 0 terminated with the following error:\n{traceback.format_exc()}"
    return ProcessRaisedException(text, error_index=0, error_pid=1)


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (AssertionError(), "errored", "AssertionError (in process 0)"),
        (ValueError("chained\nof two lines"), "errored", "ValueError: chained\nof two lines"),
        (RuntimeError("torch.OutOfMemoryError is not what I am"), "errored", "RuntimeError"),
        (torch.OutOfMemoryError("chained. Try\nless"), "out_of_memory", "chained. Try\nless"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
            "out_of_memory",
            "OutOfMemoryError: CUDA out of memory (in process 0)",
        ),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory", "CUDA error"),
        (ZeusConfigError("no batch_size"), "withdrawn", "ZeusConfigError: no batch_size"),
    ],
)
def test_an_error_in_a_started_process_has_its_own_outcome(
    error: BaseException, outcome: str, text: str
) -> None:
    raised = raised_in_process(error)
    assert outcome_of(raised) == outcome
    assert text in reason_of(raised)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asyncio.CancelledError(), "interrupted"),
        (GeneratorExit(), "interrupted"),
        (SystemExit(3), "interrupted"),
        (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory: ..."), "out_of_memory"),
        (RuntimeError(ValueError("wrapped")), "errored"),
    ],
)
def test_an_exception_has_the_outcome_of_its_kind(error: BaseException, outcome: str) -> None:
    assert outcome_of(error) == outcome


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGTERM, "interrupted"), (signal.SIGKILL, "errored")],
)
def test_a_killed_process_has_the_outcome_of_its_signal(number: int, outcome: str) -> None:
    name = signal.Signals(number).name
    exited = ProcessExitedException(f"process 0 terminated with {name}", 0, 1, -number, name)
    assert outcome_of(exited) == outcome


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SIGTERMException(), "by SIGTERM"),
        (SystemExit(128 + signal.SIGTERM), "by SIGTERM"),
        (SystemExit(1), "SystemExit: 1"),
        (ValueError(128 + signal.SIGTERM), "ValueError: 143"),
        (ValueError("x" * 2000), f"ValueError: {'x' * 988}"),
        (RuntimeError("a NUL \0, half a pair \ud800"), "RuntimeError: a NUL  , half a pair ?"),
    ],
)
def test_what_ended_a_run_is_named_in_text_that_can_be_stored(
    error: BaseException, reason: str
) -> None:
    assert reason_of(error) == reason
