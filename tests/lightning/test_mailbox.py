"""A value reaches the process that started the one which wrote it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from forked import in_forked_child

from zeus_lightning.mailbox import Mailbox


def write(index: int, mailbox: Mailbox) -> None:
    mailbox.write({"text": "déjà vu", "figures": [1, 2.5, None]})


def spawned(mailbox: Mailbox) -> None:
    torch.multiprocessing.start_processes(write, (mailbox,), nprocs=1, start_method="spawn")


def forked(mailbox: Mailbox) -> None:
    in_forked_child(lambda: write(0, mailbox))


@pytest.mark.parametrize("start", [spawned, forked])
def test_what_a_started_process_writes_is_read_by_its_parent(
    start: Callable[[Mailbox], None],
) -> None:
    mailbox = Mailbox()
    assert mailbox.read() is None
    start(mailbox)
    assert mailbox.read() == {"text": "déjà vu", "figures": [1, 2.5, None]}


def test_the_last_value_stands_and_one_too_large_leaves_none() -> None:
    mailbox = Mailbox()
    mailbox.write({"a": "long value"})
    mailbox.write({"b": 1})
    assert mailbox.read() == {"b": 1}
    mailbox.write({"c": "x" * 10**6})
    assert mailbox.read() is None


def test_a_copy_is_a_mailbox_of_its_own() -> None:
    mailbox = Mailbox()
    for other in (copy.deepcopy(mailbox), pickle.loads(pickle.dumps(mailbox))):
        other.write({"a": 1})
        assert mailbox.read() is None
