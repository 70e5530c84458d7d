"""The signals that end a driver."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def end_signals() -> list[signal.Signals]:
    """The signals other than Ctrl-C that end a driver; under `nohup`, SIGHUP does not."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Handle signals that end the driver after the block only.

    An exception that a handler raises within `Popen` would leave its process behind.
    """
    came: list[int] = []
    numbers = [signal.SIGINT, *end_signals()]
    before = {each: signal.signal(each, lambda number, _: came.append(number)) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in came:
            signal.raise_signal(received)
