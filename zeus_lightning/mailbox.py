"""`Mailbox`: a value that processes started by `ddp_spawn` or `ddp_fork` tell the one they left."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import torch

_CAPACITY = 32 * 1024


class Mailbox:
    """A JSON value in memory that a process shares with those it forks or spawns.

    Callbacks do not come back from such processes, and the one that started them runs few hooks: it
    hears of a trial from here. One process writes; the others read when it has ended.
    """

    def __init__(self) -> None:
        self._bytes = torch.zeros(_CAPACITY, dtype=torch.uint8)
        with suppress(RuntimeError):  # no shared memory here: what is told stays in its process
            self._bytes.share_memory_()  # type: ignore[no-untyped-call]

    def write(self, value: dict[str, Any]) -> None:
        """Put a value in the place of the last one; one that is too large leaves none."""
        text = json.dumps(value).encode()
        self._bytes.zero_()
        if len(text) <= _CAPACITY:
            self._bytes[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def read(self) -> dict[str, Any] | None:
        """The value, None where there is none."""
        text = bytes(self._bytes.numpy()).rstrip(b"\0")
        with suppress(ValueError):  # its writer was killed while it wrote
            value: dict[str, Any] = json.loads(text)
            return value
        return None
