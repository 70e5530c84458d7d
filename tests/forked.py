"""Run a function in a forked process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from waiting import LIMIT_S, wait_until

CONTEXT = multiprocessing.get_context("forkserver")


def in_forked_child(function: Callable[[], object]) -> None:
    """Call a function in a forked child process and raise here what it raised there."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(sender, pickle.dumps(_error_of(function)))
        finally:
            os._exit(0)
    os.close(sender)
    try:
        with os.fdopen(receiver, "rb") as pipe:
            error: Exception | None = pickle.load(pipe)
    finally:
        os.waitpid(pid, 0)  # a child that is killed closes its pipe before it is gone
    if error is not None:
        raise error


def _error_of(function: Callable[[], object]) -> Exception | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        return error
    return None


@contextmanager
def training_process(train: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that trains without end; in the end it is killed, if it has not ended before.

    Args:
        train: What the process calls, with `arguments` and a `multiprocessing.Event` that it sets
            once it trains: the block is entered then.
    """
    begun = CONTEXT.Event()
    environment = dict(os.environ)  # the server has that of its start
    process = CONTEXT.Process(target=_train, args=(environment, train, *arguments, begun))
    process.start()
    try:
        wait_until(lambda: begun.is_set() or not process.is_alive())
        assert process.is_alive()
        yield process
    finally:
        process.kill()
        process.join(LIMIT_S)


def _train(environment: dict[str, str], train: Callable[..., object], *arguments: Any) -> None:
    set_environment(environment)
    train(*arguments)


def set_environment(environment: dict[str, str]) -> None:
    """Take the variables of the process that asked for this fork, and its reaction to Ctrl-C."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`


@contextmanager
def default_sigterm() -> Iterator[None]:
    """The default reaction to SIGTERM, within the block alone."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
