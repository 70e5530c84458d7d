"""Extend a trial's lease while no validation ends."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread


def start_heartbeat(
    send: Callable[[], object], is_running: Callable[[], bool], lease_s: float
) -> Callable[[], None]:
    """Call `send` three times per lease in a daemon thread, until it is stopped or the run ends.

    Errors of `send` are ignored: the next heartbeat makes up for one that fails, and a trial whose
    lease has expired is revived by its next report.

    Args:
        send: Sends one heartbeat to the service, in a bounded time.
        is_running: Whether the run continues; called before each heartbeat.
        lease_s: Seconds without a heartbeat or a report after which the trial is lost.

    Returns:
        A function that stops the heartbeats, without waiting for one that is being sent.
    """
    stopped = Event()

    def run() -> None:
        while not stopped.wait(lease_s / 3) and is_running():
            with suppress(Exception):
                send()

    Thread(target=run, name="zeus-heartbeat", daemon=True).start()
    return stopped.set
