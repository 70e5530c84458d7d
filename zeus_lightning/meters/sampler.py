"""A thread that reads a quantity often enough, for meters that cannot wait for the next reading."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Lock, Thread

from zeus_lightning.errors import ZeusMeterError

_STOP_TIMEOUT_S = 1.0


class Sampler:
    """Calls `sample` at once, then every `interval_s` seconds in a daemon thread until `stop`.

    Args:
        sample: Takes a sample and returns the energy in joules up to it. Never called twice at the
            same time; raises nothing but `ZeusMeterError`.
        interval_s: Seconds between two samples.
        name: The thread's name.

    Raises:
        ZeusMeterError: The first sample failed.
    """

    def __init__(self, sample: Callable[[], float], interval_s: float, name: str) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._lock = Lock()
        self._stopped = Event()
        self._error: ZeusMeterError | None = None
        self._pid = os.getpid()
        self._sample()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def read(self) -> float:
        """Take a sample now and return the energy in joules up to it.

        Raises:
            ZeusMeterError: This sample failed, or one in the thread did; the samples after that one
                are missing, so every later reading fails too.
        """
        if os.getpid() != self._pid:
            raise ZeusMeterError(
                f"the energy meter was opened in process {self._pid} and its sampling thread does "
                f"not live in this one ({os.getpid()}); open the meter after the fork"
            )
        with self._lock:
            if self._error is not None:
                raise ZeusMeterError(self._error.message) from self._error
            return self._sample()

    def stop(self) -> None:
        """End the thread; a driver call that hangs is left behind rather than waited for."""
        self._stopped.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            with self._lock:
                try:
                    self._sample()
                except ZeusMeterError as error:
                    self._error = error
                    return
