"""Wait for conditions, so that no test depends on how fast the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 240
"""Far more than anything takes on a machine several times slower; less than pytest's own limit."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T], shown: Callable[[], object] = str) -> T:
    """Wait until a condition holds, and return its value.

    Args:
        condition: Called again and again until it returns something true.
        shown: What to show where it never does.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, shown()
        time.sleep(0.01)
    return value
