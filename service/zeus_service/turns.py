"""Turns, in which the threads of a worker answer their requests."""

from __future__ import annotations

from collections import deque
from threading import Lock
from time import perf_counter, process_time

AT_ONCE = 2
"""Requests, at least: one computes while the other waits for the database."""

WINDOW_S = 0.02
"""How long to look at the worker before another request is let in."""


class Turns:
    """Few requests at a time, in the order of their coming, unless they hardly compute.

    Python runs one thread at a time. Eight that fight over that, at each answer of the database,
    take a quarter longer than two at a time, and the unlucky ones twice as long. Where they do not
    compute but wait, for a lock or a database far away, more are let in, and fewer again later.
    A worker that waits for a core looks alike.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._at_once = AT_ONCE
        self._taken = 0
        self._waiting: deque[Lock] = deque()  # each waits for its lock
        self._began_s = self._cpu_s = 0.0  # of the window

    def take(self) -> None:
        """Wait for a turn."""
        called = Lock()
        with self._mutex:
            if self._taken == 0:
                self._began_s, self._cpu_s = perf_counter(), process_time()
            if self._taken < self._at_once:
                self._taken += 1
                return
            called.acquire()
            self._waiting.append(called)
        while not called.acquire(timeout=WINDOW_S):
            with self._mutex:
                self._call()

    def give(self) -> None:
        """Give a turn that was taken to the next one."""
        with self._mutex:
            self._taken -= 1
            self._call()

    def _call(self) -> None:
        """Call those that have waited longest, if there are turns for them."""
        self._adapt()
        while self._waiting and self._taken < self._at_once:
            self._taken += 1
            self._waiting.popleft().release()

    def _adapt(self) -> None:
        """One more where the worker computes less than 30 % of the time, one less above 60 %.

        Two workers whose requests wait for the same row compute for half of the time each: more of
        them would only make the one that has locked it wait for Python, and all with it.
        """
        now_s, cpu_s = perf_counter(), process_time()
        window_s = now_s - self._began_s
        if window_s < WINDOW_S:
            return
        busy = (cpu_s - self._cpu_s) / window_s
        if busy < 0.3 and self._waiting:
            self._at_once += 1
        elif busy > 0.6:
            self._at_once = max(AT_ONCE, self._at_once - 1)
        self._began_s, self._cpu_s = now_s, cpu_s
