"""The metrics that Prometheus scrapes.

Counters (requests, trials that ended, joules) are summed over a server's workers by
prometheus-client's files, start from 0 with the server, and add up over replicas. Gauges (running
trials, what was saved, the last costs) are read from the database at a scrape, and are the same on
every replica.
"""

from collections.abc import Iterator, Sequence
from os import environ
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from zeus_service.counters import REGISTRY
from zeus_service.db import savings
from zeus_service.db.deadline import deadline
from zeus_service.db.leases import IN_FORCE
from zeus_service.db.tables import JOBS, TRIALS
from zeus_service.db.transactions import use_case
from zeus_service.errors import Contended
from zeus_service.savings_report import Rates

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
            with deadline(_SCRAPE_S):
                jobs, running, latest, totals = _read()
        except (SQLAlchemyError, Contended):
            yield GaugeMetricFamily(*up, 0)
            return
        yield GaugeMetricFamily(*up, 1)
        yield GaugeMetricFamily("zeus_bso_jobs", "Jobs registered.", jobs)
        alive = "Trials that have not ended, and whose lease is in force."
        yield GaugeMetricFamily("zeus_bso_trials_running", alive, running)
        yield from _of_latest_jobs(latest)
        yield from _saved(totals)
        rates = Rates.configured()
        if rates.price_per_kwh is not None:
            yield GaugeMetricFamily("zeus_bso_price_per_kwh", "As configured.", rates.price_per_kwh)
        if rates.carbon_intensity is not None:
            carbon = ("zeus_bso_carbon_intensity_grams_per_kwh", "As configured.")
            yield GaugeMetricFamily(*carbon, rates.carbon_intensity)


def _of_latest_jobs(latest: Sequence[Any]) -> Iterator[GaugeMetricFamily]:
    which = f"each of the {MAX_JOBS} jobs that changed last"
    cost = ("zeus_bso_job_last_cost_joules", f"Cost of the latest ended trial of {which}.")
    saved = ("zeus_bso_job_saved_joules", f"Joules saved against the default by {which}.")
    for column, metric in enumerate((cost, saved), 1):
        family = GaugeMetricFamily(*metric, labels=("job_id",))
        for row in latest:
            if isinstance(row[column], int | float):
                family.add_metric((row[0],), row[column])
        yield family


def _saved(totals: list[savings.Total]) -> Iterator[GaugeMetricFamily]:
    """What was saved, and the bounds of its 95 % interval, by whether meters estimate."""
    for index, (unit, what) in enumerate(_SAVED.items()):
        for bound, factor in (("", 0), ("_low", -1), ("_high", 1)):
            family = GaugeMetricFamily(
                f"zeus_bso_saved_{unit}{bound}",
                f"{what} saved against the default batch sizes{_BOUNDS[bound]}.",
                labels=("estimated",),
            )
            for total in totals:
                value = total.saved.mean[index] + factor * total.saved.error[index]
                family.add_metric((str(total.estimated).lower(),), value)
            yield family


_SAVED = {"joules": "Joules", "seconds": "Seconds", "cost_joules": "Cost in joules"}
_BOUNDS = {"": "", "_low": ": the lower bound", "_high": ": the upper bound"}


@use_case(read_only=True)
def _read(connection: Connection) -> tuple[int, int, Sequence[Any], list[savings.Total]]:
    jobs, running = connection.execute(_RUNNING).one()
    latest = [
        row
        for row in connection.execute(_LATEST)
        if isinstance(row[0], str)  # a row may be damaged
    ]
    return jobs, int(running or 0), latest, savings.totals(connection)


_RUNNING = select(
    func.count(),
    func.sum(
        select(func.count())
        .where(TRIALS.c.job_id == JOBS.c.job_id, IN_FORCE)
        .correlate(JOBS)
        .scalar_subquery()
    ),
).select_from(JOBS)
_LATEST = (
    select(
        JOBS.c.job_id,
        select(TRIALS.c.cost)
        .where(TRIALS.c.job_id == JOBS.c.job_id, TRIALS.c.outcome.is_not(None))
        .order_by(TRIALS.c.trial_number.desc())
        .limit(1)
        .correlate(JOBS)
        .scalar_subquery(),
        JOBS.c.saved_energy_j,
    )
    .order_by(JOBS.c.updated_at.desc())
    .limit(MAX_JOBS)
)
