"""First-in, first-out queues for the requests of one process.

Requests that change the same job exclude one another by a lock of the database, which is not fair,
and for which each of them would wait with a connection. In a queue they wait without one, so that a
locked job does not use up the connections that other jobs need. Correctness depends on the
database's lock alone: other processes have queues of their own.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from zeus_service.errors import Contended


class _Queue:
    def __init__(self) -> None:
        self.inside = 0
        self.waiting: deque[threading.Event] = deque()

    def let_in(self, room: Callable[[], int]) -> None:
        while self.waiting and self.inside < room():
            self.inside += 1
            self.waiting.popleft().set()


_queues: dict[Hashable, _Queue] = {}
_mutex = threading.Lock()  # for a few instructions, never while waiting


@contextmanager
def turn(
    key: Hashable,
    *,
    at_once: int | Callable[[], int],
    timeout_s: float,
    max_waiting: float = math.inf,
) -> Iterator[None]:
    """Wait, first in, first out, until fewer than `at_once` others are within a block of this key.

    `at_once` may change from call to call: whoever comes or leaves then lets in as many of those
    that wait as there is room for.

    Raises:
        Contended: `max_waiting` others wait already, or this one has waited for `timeout_s`.
    """
    called = None
    room = at_once if callable(at_once) else lambda: at_once
    with _mutex:
        queue = _queues.setdefault(key, _Queue())
        if not queue.waiting and queue.inside < room():
            queue.inside += 1
        elif len(queue.waiting) >= max_waiting and queue.inside >= room():
            raise Contended("too many requests wait for this; send this one again")
        else:
            called = threading.Event()
            queue.waiting.append(called)
            queue.let_in(room)
    try:
        if called is not None and not called.wait(max(0.0, timeout_s)):
            raise Contended("other requests took too long; send this one again")
        yield
    finally:
        with _mutex:
            # its time is up, or its thread or greenlet is being ended
            if called is not None and not called.is_set():
                queue.waiting.remove(called)
            else:
                queue.inside -= 1
            queue.let_in(room)
            if not queue.inside:
                del _queues[key]
