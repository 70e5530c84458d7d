"""`SharedRecord`: a trial's record in memory that a process shares with those it starts."""

import json
from contextlib import suppress

import torch

from zeus_lightning.trial.record import TrialRecord

_CAPACITY = 32 * 1024


class SharedRecord:
    """The record of a trial, in memory shared with forked and spawned processes.

    `ddp_spawn` and `ddp_fork` train in processes whose callback objects are not returned to the
    parent, where Lightning calls only a few hooks. The parent reads here which trial they trained,
    and how it ended. Rank zero writes; the parent reads when the ranks have ended.
    """

    def __init__(self) -> None:
        self._bytes = torch.zeros(_CAPACITY, dtype=torch.uint8, device="cpu")
        with suppress(RuntimeError):  # without shared memory the record stays in its own process
            self._bytes.share_memory_()  # type: ignore[no-untyped-call]

    def write(self, record: TrialRecord) -> None:
        """Replace the record; one that is too large clears it."""
        self.clear()
        text = json.dumps(record.to_json()).encode()
        if len(text) <= _CAPACITY:
            self._bytes[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def clear(self) -> None:
        """Remove the record."""
        self._bytes.zero_()

    def read(self) -> TrialRecord | None:
        """The record, None if there is none."""
        text = bytes(self._bytes.numpy()).rstrip(b"\0")
        with suppress(ValueError):  # empty, or its writer was killed as it wrote
            return TrialRecord.from_json(json.loads(text))
        return None
