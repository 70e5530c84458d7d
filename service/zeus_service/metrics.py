"""What Prometheus is told.

What the workers count themselves (requests, trials that ended, joules) is summed over a server's
workers by prometheus-client's files, starts from 0 with the server, and adds up over replicas. What
is a state (running trials, the last costs) is read from the database when asked for, and is the
same on every replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import environ

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from zeus_service.models import JOBS, TRIALS
from zeus_service.signals import energy_measured, trial_ended
from zeus_service.transactions import use_case

MAX_JOBS = 100
"""Jobs with metrics of their own: those that changed last."""

METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

_counted = CollectorRegistry()
_requests = Counter(
    "zeus_bso_http_requests",
    "Requests answered.",
    ("method", "route", "status"),
    registry=_counted,
)
_durations = Histogram(
    "zeus_bso_http_request_duration_seconds",
    "Time to answer a request.",
    ("method", "route"),
    registry=_counted,
)
_trials = Counter(
    "zeus_bso_trials_ended",
    "Trials that ended, by outcome; one that was taken up again and ended anew counts again.",
    ("outcome",),
    registry=_counted,
)
_energy = Counter(
    "zeus_bso_energy_joules", "Energy that reports told of, in joules.", registry=_counted
)


@trial_ended.connect
def _count_trial(outcome: str) -> None:
    _trials.labels(outcome).inc()


@energy_measured.connect
def _count_energy(energy_j: float) -> None:
    _energy.inc(energy_j)


def count_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count a request that was answered.

    Args:
        method: As sent.
        route: The route's pattern, empty when none matched; never the path itself.
        status: Of the answer.
        seconds: What it took.
    """
    method = method if method in METHODS else "other"
    _requests.labels(method, route, str(status)).inc()
    _durations.labels(method, route).observe(seconds)


def exposition() -> bytes:
    """All metrics in Prometheus' text format; to be called within the application's context."""
    registry = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # has no types
    else:
        registry.register(_counted)
    registry.register(_Database())
    return generate_latest(registry)


class _Database(Collector):
    """What is asked of the database at a scrape.

    Its cost does not grow with the trials that have ended: a pass over the jobs, for each of them a
    look into the index on (outcome, job), and for `MAX_JOBS` of them one into the primary key.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        up = GaugeMetricFamily("zeus_bso_database_up", "Whether the database answers.")
        try:
            jobs, running, costs = _read()
        except SQLAlchemyError:
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        yield up
        yield GaugeMetricFamily("zeus_bso_jobs", "Jobs registered.", jobs)
        yield GaugeMetricFamily("zeus_bso_trials_running", "Trials that have not ended.", running)
        last_costs = GaugeMetricFamily(
            "zeus_bso_job_last_cost_joules",
            f"Cost of the latest ended trial of each of the {MAX_JOBS} jobs that changed last.",
            labels=("job_id",),
        )
        for job_id, cost in costs:
            if cost is not None:
                last_costs.add_metric((job_id,), cost)
        yield last_costs


@use_case(read_only=True)
def _read(connection: Connection) -> tuple[int, int, list[tuple[str, float | None]]]:
    jobs, running = connection.execute(_RUNNING).one()
    costs = [(job_id, cost) for job_id, cost in connection.execute(_LAST_COSTS)]
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
