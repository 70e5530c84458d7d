"""How a run ended, read from what ended it: also where it happened in another process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from zeus_lightning import ZeusConfigError
from zeus_lightning.run.outcomes import outcome_of, reason_of


def fails(index: int, error: BaseException) -> None:
    try:
        int("first") if "chained" in str(error) else None
    except ValueError as cause:
        raise error from cause
    raise error


def dies(index: int, number: int) -> None:
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)  # Lightning's handler may have been inherited
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (AssertionError(), "errored", "AssertionError (in process 0)"),
        (ValueError("chained\nof two lines"), "errored", "ValueError: chained\nof two lines"),
        (RuntimeError("torch.OutOfMemoryError is not what I am"), "errored", "RuntimeError"),
        (torch.OutOfMemoryError("chained. Try\nless"), "out_of_memory", "chained. Try\nless"),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory", "CUDA error"),
        (ZeusConfigError("no batch_size"), "withdrawn", "ZeusConfigError: no batch_size"),
    ],
)
def test_an_error_in_a_started_process_has_its_own_outcome(
    error: BaseException, outcome: str, text: str
) -> None:
    with pytest.raises(ProcessRaisedException) as raised:
        torch.multiprocessing.start_processes(fails, (error,), nprocs=1, start_method="fork")
    assert outcome_of(raised.value) == outcome
    assert text in reason_of(raised.value)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit()])
def test_what_ends_a_run_from_outside_is_no_error_of_it(error: BaseException) -> None:
    assert outcome_of(error) == "interrupted"


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGTERM, "interrupted"), (signal.SIGKILL, "errored")],
)
def test_a_killed_process_has_the_outcome_of_its_signal(number: int, outcome: str) -> None:
    with pytest.raises(ProcessExitedException) as raised:
        torch.multiprocessing.start_processes(dies, (number,), nprocs=1, start_method="fork")
    assert outcome_of(raised.value) == outcome


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SIGTERMException(), "by SIGTERM"),
        (SystemExit(128 + signal.SIGTERM), "by SIGTERM"),
        (SystemExit(1), "SystemExit: 1"),
        (ValueError(128 + signal.SIGTERM), "ValueError: 143"),
    ],
)
def test_the_signal_that_ended_a_run_is_named(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason
