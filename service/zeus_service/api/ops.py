"""Routes for an operator's tools: liveness, readiness and metrics."""

import logging

from apiflask import APIBlueprint
from flask import Response
from flask.typing import ResponseReturnValue
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from werkzeug.exceptions import ServiceUnavailable

from zeus_service import __version__
from zeus_service.api import metrics
from zeus_service.api.access import require_access
from zeus_service.api.messages import Health
from zeus_service.db.migrate import check_revision
from zeus_service.errors import Unusable

logger = logging.getLogger(__name__)

health = APIBlueprint("health", __name__, tag="health")


@health.get("/healthz")
@health.output(Health)
def healthz() -> Health:
    """Report that the process answers."""
    return Health(status="ok", version=__version__)


@health.get("/readyz")
@health.output(Health)
def readyz() -> Health:
    """Report whether the database takes writes and has the revision of this version."""
    try:
        check_revision()
    except Unusable as error:
        logger.error("not ready: %s", error)  # noqa: TRY400 - the message says all
        # The answer needs no token, so it must not name hosts, users and paths.
        raise ServiceUnavailable("the database cannot be used; the log says why") from error
    return Health(status="ok", version=__version__)


@health.get("/metrics")
def get_metrics() -> ResponseReturnValue:
    """Metrics in Prometheus' text format."""
    require_access()
    return Response(metrics.exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
