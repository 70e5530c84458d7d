"""Run a function in a fork of this process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable


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
    with os.fdopen(receiver, "rb") as pipe:
        error: Exception | None = pickle.load(pipe)
    os.waitpid(pid, 0)
    if error is not None:
        raise error


def _error_of(function: Callable[[], object]) -> Exception | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        return error
    return None
