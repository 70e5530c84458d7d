"""`Heartbeat`: keep a trial's lease while no validation ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread


class Heartbeat:
    """Calls `beat` every `interval_s` seconds in a daemon thread, until `stop` or `alive` is false.

    Nothing it raises is heard: a beat that fails is made up for by the next one, and a trial that
    is lost comes back with its next report.

    Args:
        beat: One call to the service, bounded in time.
        alive: Whether the run still goes on; asked before each beat.
        interval_s: Seconds between two beats.
    """

    def __init__(
        self, beat: Callable[[], object], alive: Callable[[], bool], interval_s: float
    ) -> None:
        self._beat = beat
        self._alive = alive
        self._interval_s = interval_s
        self._stopped = Event()
        Thread(target=self._run, name="zeus-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Beat no more; a beat under way is not waited for."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s) and self._alive():
            with suppress(Exception):
                self._beat()
