"""Signals that end a driver wait while it starts its service."""

from __future__ import annotations

import signal

from zeus_lightning.recur.signals import signals_deferred


def test_a_signal_is_handled_after_the_block() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: handled.append(number))
    try:
        with signals_deferred():
            signal.raise_signal(signal.SIGTERM)
            assert not handled
        assert handled == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert len(handled) == 2
    finally:
        signal.signal(signal.SIGTERM, before)
