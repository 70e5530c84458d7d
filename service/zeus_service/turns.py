"""Turns, in which the threads of a worker answer their requests."""

from __future__ import annotations

from collections import deque
from threading import Lock, get_ident

TURN_S = 0.02
"""Seconds after which a turn passes on, also from one that has not given it away."""


class Turns:
    """One thread begins after the other, in the order of their coming.

    Python runs one of them at a time. Eight that fight over that, at each answer of the database,
    take a third longer than one after the other, and the unlucky ones twice as long. One that needs
    long, as it waits for a lock or a database far away, holds up the others for `TURN_S` only.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._holder: int | None = None
        self._waiting: deque[tuple[int, Lock]] = deque()  # each waits for its lock

    def take(self) -> None:
        """Wait for this thread's turn: at most `TURN_S` for each thread that is before it."""
        me, called = get_ident(), Lock()
        with self._mutex:
            if self._holder is None:
                self._holder = me
                return
            called.acquire()
            self._waiting.append((me, called))
            before = len(self._waiting)
        while not called.acquire(timeout=before * TURN_S):
            with self._mutex:
                if self._holder != me:  # it could have been called just now
                    self._pass_on()
                before = 1

    def give(self) -> None:
        """Give the turn to the next one, if this thread still has it."""
        with self._mutex:
            if self._holder == get_ident():
                self._pass_on()

    def _pass_on(self) -> None:
        self._holder = None
        if self._waiting:
            self._holder, called = self._waiting.popleft()
            called.release()
