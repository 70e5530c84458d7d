"""What the use cases announce once it is committed; `zeus_service.metrics` listens."""

from __future__ import annotations

from blinker import NamedSignal, Namespace
from sqlalchemy import Connection

_namespace = Namespace()
trial_ended = _namespace.signal("trial-ended", "A trial ended; the sender is its outcome.")
energy_measured = _namespace.signal("energy-measured", "The sender is in joules.")

_PENDING = "announced_after_commit"


def announce(connection: Connection, signal: NamedSignal, sender: object) -> None:
    """Send a signal once this connection's transaction has committed; not if it rolls back."""
    connection.info[_PENDING].append((signal, sender))


def begin(connection: Connection) -> None:
    """A transaction begins: forget what one that rolled back would have announced."""
    connection.info[_PENDING] = []


def committed(connection: Connection) -> None:
    """The transaction has committed."""
    for signal, sender in connection.info.pop(_PENDING):
        signal.send(sender)
