"""A record reaches the process that started the one which wrote it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from forked import in_forked_child
from records import record

from zeus_lightning.trial.shared_record import SharedRecord

RECORD = record(reason="déjà vu")


def write(index: int, shared: SharedRecord) -> None:
    shared.write(RECORD)


def spawned(shared: SharedRecord) -> None:
    torch.multiprocessing.start_processes(write, (shared,), nprocs=1, start_method="spawn")


def forked(shared: SharedRecord) -> None:
    in_forked_child(lambda: write(0, shared))


@pytest.mark.parametrize("start", [spawned, forked])
def test_a_record_that_a_started_process_writes_is_read_by_its_parent(
    start: Callable[[SharedRecord], None],
) -> None:
    shared = SharedRecord()
    assert shared.read() is None
    start(shared)
    assert shared.read() == RECORD


def test_the_last_record_stands_and_one_too_large_clears_it() -> None:
    shared = SharedRecord()
    shared.write(replace(RECORD, reason="a long reason"))
    shared.write(RECORD)
    assert shared.read() == RECORD
    shared.write(replace(RECORD, reason="x" * 10**6))
    assert shared.read() is None


def test_a_cleared_record_is_gone() -> None:
    shared = SharedRecord()
    shared.write(RECORD)
    shared.clear()
    assert shared.read() is None


def test_a_copy_shares_nothing() -> None:
    shared = SharedRecord()
    for other in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        other.write(RECORD)
        assert shared.read() is None


def test_a_program_with_another_default_device_has_its_record_in_memory() -> None:
    with torch.device("meta"):  # stands in for cuda, which set_default_device() may name
        shared = SharedRecord()
        shared.write(RECORD)
        assert shared.read() == RECORD
