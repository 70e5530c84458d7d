"""What an operator's tools see: health, readiness, metrics, and a log line for each request.

The counters, of `counters.py`, are summed over a server's workers by prometheus-client's files,
start from 0 with the server, and add up over replicas. Gauges are read from the database at a
scrape, and are the same on every replica. All are totals: none has a series for each job.
"""

import functools
import logging
import re
import time
import uuid
from collections.abc import Iterator
from os import environ
from threading import Lock

from apiflask import APIBlueprint
from flask import Flask, Response, current_app, g, request
from flask.typing import ResponseReturnValue
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from werkzeug.exceptions import ServiceUnavailable

from zeus_service import __version__, counters
from zeus_service.api.access import require_access
from zeus_service.api.messages import Health
from zeus_service.config import current_config
from zeus_service.db import savings
from zeus_service.db.migrate import check_revision
from zeus_service.db.session import time_limit, unix_now, use_case
from zeus_service.db.tables import Job, Trial
from zeus_service.errors import Contended, Unusable
from zeus_service.savings.report import Amounts

logger = logging.getLogger(__name__)

health = APIBlueprint("health", __name__, tag="health")

READY_S = 1.0
"""How long `/readyz` repeats its answer: it needs no token, so anyone may ask at any rate."""

REQUEST_ID_PATTERN = "[A-Za-z0-9._:=/+-]{1,128}"
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

_SCRAPE_S = 5.0
"""Prometheus gives a scrape up after 10 s, unless it is set otherwise."""


def set_up_monitoring(app: Flask) -> None:
    """Add the operator's routes; log and count every request, and assign an id to it."""
    app.extensions["zeus_readiness"] = _Readiness()
    app.register_blueprint(health)
    app.before_request(_begin)
    app.after_request(_end)


@health.get("/healthz")
@health.output(Health)
def healthz() -> Health:
    """Report that the process answers."""
    return Health(status="ok", version=__version__)


@health.get("/readyz")
@health.output(Health)
def readyz() -> Health:
    """Report whether the database answers and has the revision of this version."""
    if not current_app.extensions["zeus_readiness"].check():
        # The answer needs no token, so it must not name hosts, users and paths.
        raise ServiceUnavailable("the database is unavailable; see the service's log")
    return Health(status="ok", version=__version__)


@health.get("/metrics")
def get_metrics() -> ResponseReturnValue:
    """Metrics in Prometheus' text format."""
    require_access()
    return Response(_exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Readiness:
    """Whether the database can be used: asked once in `READY_S`, by one request at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_ready = False
        self._asked_at = -READY_S

    def check(self) -> bool:
        """The latest answer; within the application's context."""
        with self._lock:
            if time.monotonic() - self._asked_at >= READY_S:
                self._is_ready = self._ask()
                self._asked_at = time.monotonic()
            return self._is_ready

    def _ask(self) -> bool:
        try:
            check_revision()
        except Unusable as error:
            logger.error("not ready: %s", error)  # noqa: TRY400 - the message says all
            return False
        return True


def _begin() -> None:
    g.began = time.perf_counter()
    given = request.headers.get("X-Request-ID", "")
    g.request_id = given if re.fullmatch(REQUEST_ID_PATTERN, given) else uuid.uuid4().hex


def _end(response: Response) -> Response:
    seconds = time.perf_counter() - g.began
    response.headers["X-Request-ID"] = g.request_id
    # The pattern that matched, or empty, never a path: that would be a series for each.
    route = _path(request.url_rule.rule) if request.url_rule else ""
    method = request.method if request.method in METHODS else "other"
    counters.requests.labels(method, route, str(response.status_code)).inc()
    counters.durations.labels(method, route).observe(seconds)
    fields = {"method": request.method, "route": route, "status": response.status_code}
    fields["milliseconds"] = round(seconds * 1000, 1)
    if job_id := g.get("job_id") or (request.view_args or {}).get("job_id"):
        fields["job_id"] = job_id
    logger.info("request", extra={"fields": fields})
    return response


@functools.cache
def _path(rule: str) -> str:
    """A route's path as in OpenAPI: `/jobs/{job_id}`, whatever converts the id."""
    return re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", rule)


def _exposition() -> bytes:
    """All metrics in Prometheus' text format; within the application's context."""
    registry = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call] # has no types
    else:
        registry.register(counters.REGISTRY)
    registry.register(_Database())
    return generate_latest(registry)


class _Database(Collector):
    """Gauges read from the database at a scrape.

    Their cost does not grow with the trials that have ended: a pass over the jobs, and for each of
    them a lookup in the index on (outcome, job).
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry."""
        up = ("zeus_bso_database_up", "1 if the database can be reached, else 0.")
        try:
            with time_limit(_SCRAPE_S):
                jobs, running, amounts = _read()
        except (SQLAlchemyError, Contended):
            yield GaugeMetricFamily(*up, 0)
            return
        yield GaugeMetricFamily(*up, 1)
        yield GaugeMetricFamily("zeus_bso_jobs", "Jobs registered.", jobs)
        alive = "Trials that have not ended, and whose lease has not expired."
        yield GaugeMetricFamily("zeus_bso_trials_running", alive, running)
        yield from _saved(amounts)
        config = current_config()
        for name, setting, value in (
            ("zeus_bso_price_per_kwh", "ZEUS_BSO_PRICE_PER_KWH", config.price_per_kwh),
            (
                "zeus_bso_carbon_intensity_grams_per_kwh",
                "ZEUS_BSO_CARBON_INTENSITY",
                config.carbon_intensity,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(name, f"The setting {setting}.", value)


def _saved(amounts: Amounts) -> Iterator[GaugeMetricFamily]:
    """What was saved, and the bounds of its 95 % interval."""
    for unit, (name, what) in _SAVED.items():
        for end, bound in _BOUNDS.items():
            what_it_is = f"{what} saved compared with the default batch sizes{bound}."
            value = getattr(getattr(amounts, name), end.strip("_") or "estimate")
            yield GaugeMetricFamily(f"zeus_bso_saved_{unit}{end}", what_it_is, value)


_SAVED = {"joules": ("energy_j", "Joules"), "seconds": ("time_s", "Seconds")}
_BOUNDS = {
    "": "",
    "_low": ", lower bound of the 95 % interval",
    "_high": ", upper bound of the 95 % interval",
}


@use_case(read_only=True)
def _read(session: Session) -> tuple[int, int, Amounts]:
    has_lease = Trial.lease_expires_at >= unix_now()
    running = select(func.count()).select_from(Trial).join(Job, Job.key == Trial.job_key)
    running = running.where(Job.job_id.is_not(None), Trial.outcome.is_(None), has_lease)
    total, amounts = savings.total(session)
    return total.jobs, session.scalar(running) or 0, amounts
