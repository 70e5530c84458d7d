"""The metrics that Prometheus scrapes.

Counters (requests, trials that ended, joules) are summed over a server's workers by
prometheus-client's files, start from 0 with the server, and add up over replicas. Gauges (running
trials, what was saved, the last costs) are read from the database at a scrape, and are the same on
every replica.
"""

from os import environ

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from zeus_service.counters import REGISTRY

MAX_JOBS = 100
"""Jobs with metrics of their own: those that changed last."""

_SCRAPE_S = 5.0
"""Prometheus gives a scrape up after 10 s, unless it is set otherwise."""

METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

_requests = Counter(
    "zeus_bso_http_requests", "Requests answered.", ("method", "route", "status"), registry=REGISTRY
)
_durations = Histogram(
    "zeus_bso_http_request_duration_seconds",
    "Time to answer a request.",
    ("method", "route"),
    registry=REGISTRY,
)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count an answered request; `route` is the pattern that matched, or empty, never a path."""
    method = method if method in METHODS else "other"
    _requests.labels(method, route, str(status)).inc()
    _durations.labels(method, route).observe(seconds)


def exposition() -> bytes:
    """All metrics in Prometheus' text format; to be called within the application's context."""
    registry = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # has no types
    else:
        registry.register(REGISTRY)
    return generate_latest(registry)
