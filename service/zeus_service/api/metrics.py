"""The metrics that Prometheus scrapes.

Counters (requests, trials that ended, joules) are summed over a server's workers by
prometheus-client's files, start from 0 with the server, and add up over replicas. Gauges (running
trials, the last costs) are read from the database at a scrape, and are the same on every replica.
"""

from collections.abc import Iterator
from os import environ

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from zeus_service.counters import REGISTRY
from zeus_service.errors import Contended
from zeus_service.store.models import JOBS, TRIALS
from zeus_service.store.transactions import use_case

MAX_JOBS = 100
"""Jobs with metrics of their own: those that changed last."""

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
    registry.register(_Database())
    return generate_latest(registry)


class _Database(Collector):
    """Gauges read from the database at a scrape.

    Their cost does not grow with the trials that have ended: a pass over the jobs, for each of them
    a lookup in the index on (outcome, job), and for `MAX_JOBS` of them one in the primary key.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        up = ("zeus_bso_database_up", "Whether the database answers.")
        try:
            jobs, running, costs = _read()
        except (SQLAlchemyError, Contended):
            yield GaugeMetricFamily(*up, 0)
            return
        yield GaugeMetricFamily(*up, 1)
        yield GaugeMetricFamily("zeus_bso_jobs", "Jobs registered.", jobs)
        yield GaugeMetricFamily("zeus_bso_trials_running", "Trials that have not ended.", running)
        last_costs = GaugeMetricFamily(
            "zeus_bso_job_last_cost_joules",
            f"Cost of the latest ended trial of each of the {MAX_JOBS} jobs that changed last.",
            labels=("job_id",),
        )
        for job_id, cost in costs:
            last_costs.add_metric((job_id,), cost)
        yield last_costs


@use_case(read_only=True)
def _read(connection: Connection) -> tuple[int, int, list[tuple[str, float]]]:
    jobs, running = connection.execute(_RUNNING).one()
    costs = [
        (job_id, cost)
        for job_id, cost in connection.execute(_LAST_COSTS)
        if isinstance(job_id, str) and isinstance(cost, int | float)  # a row may be damaged
    ]
    return jobs, int(running or 0), costs


_RUNNING = select(
    func.count(),
    func.sum(
        select(func.count())
        .where(TRIALS.c.job_id == JOBS.c.job_id, TRIALS.c.outcome.is_(None))
        .correlate(JOBS)
        .scalar_subquery()
    ),
).select_from(JOBS)
_LAST_COSTS = (
    select(
        JOBS.c.job_id,
        select(TRIALS.c.cost)
        .where(TRIALS.c.job_id == JOBS.c.job_id, TRIALS.c.outcome.is_not(None))
        .order_by(TRIALS.c.trial_number.desc())
        .limit(1)
        .correlate(JOBS)
        .scalar_subquery(),
    )
    .order_by(JOBS.c.updated_at.desc())
    .limit(MAX_JOBS)
)
