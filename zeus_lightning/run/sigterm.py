"""For loops without a Trainer: end a program by SIGTERM as Ctrl-C does, leaving its `with` blocks.

In `Trainer.fit`, Lightning itself handles SIGTERM.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` in the block, unless the program handles it itself.

    Only the main thread can; in another one, SIGTERM ends the process at once, as ever.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is _exit:  # not one that the program has set since
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
    raise SystemExit(128 + number)
