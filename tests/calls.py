"""The calls of the service that a run makes, recorded in its client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from urllib3 import HTTPConnectionPool

from zeus_lightning import client


@dataclass
class Calls:
    """Seconds after which the client gives up each call, and the requests it sends in them."""

    bounds_s: list[float] = field(default_factory=list)
    requests: int = 0

    def clear(self) -> None:
        self.bounds_s.clear()
        self.requests = 0


@contextmanager
def recorded_calls() -> Iterator[Calls]:
    """Record the calls that this process makes; they are made all the same."""
    calls = Calls()
    within, urlopen = client._within, HTTPConnectionPool.urlopen

    def recorded_within(seconds: float, call: Callable[[], Any]) -> Any:
        calls.bounds_s.append(seconds)
        return within(seconds, call)

    def recorded_urlopen(pool: HTTPConnectionPool, *args: Any, **arguments: Any) -> Any:
        calls.requests += 1  # urllib3 calls it again for each retry
        return urlopen(pool, *args, **arguments)

    with (
        mock.patch.object(client, "_within", recorded_within),
        mock.patch.object(HTTPConnectionPool, "urlopen", recorded_urlopen),
    ):
        yield calls


def assert_one_call_of_a_second(bounds_s: list[float], requests: int) -> None:
    """Lightning kills a ddp run of which a rank has died within 5 s: the end must take under 2."""
    (bound_s,) = bounds_s
    assert bound_s <= 1
    assert requests <= 1  # none where the thread that sends it started too late
