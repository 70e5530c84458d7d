"""A thread that samples a quantity at intervals, for meters whose devices must be read often."""

import os
from collections.abc import Callable
from threading import Event, Lock, Thread

from zeus_lightning.errors import ZeusMeterError


class Sampler:
    """Calls `sample` at once, then every `interval_s` seconds in a daemon thread until `stop`.

    Args:
        sample: Takes a sample and returns the energy in joules up to it. Never called by two
            threads at once; raises nothing but `ZeusMeterError`.
        interval_s: Seconds between two samples.
        name: The thread's name.
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
        """Take a sample now, and return the joules up to it; raise the error of an earlier one."""
        if os.getpid() != self._pid:
            raise ZeusMeterError(
                f"the energy meter was opened in process {self._pid} and its sampling thread does "
                f"not run in this one ({os.getpid()}); open the meter after the fork"
            )
        with self._lock:
            if self._error is not None:
                raise ZeusMeterError(self._error.message, self._error.fields) from self._error
            return self._sample()

    def stop(self) -> None:
        """Stop the thread; a driver call that hangs is waited for only briefly."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            with self._lock:
                try:
                    self._sample()
                except ZeusMeterError as error:
                    self._error = error
                    return
