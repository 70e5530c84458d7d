"""What an operator's tools ask: does it live, can it serve, what has it done."""

from __future__ import annotations

import logging

from apiflask import APIBlueprint
from flask import Response, current_app
from flask.typing import ResponseReturnValue
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from werkzeug.exceptions import ServiceUnavailable

from zeus_service import __version__, metrics
from zeus_service.api.auth import require_access
from zeus_service.database import UnusableDatabase, check_revision
from zeus_service.messages import Health

logger = logging.getLogger(__name__)

health = APIBlueprint("health", __name__, tag="health")


@health.get("/healthz")
@health.output(Health)
def healthz() -> Health:
    """Tell that the process answers."""
    return Health(status="ok", version=__version__)


@health.get("/readyz")
@health.output(Health)
def readyz() -> Health:
    """Tell whether the database answers, and is of the revision that this version works with."""
    try:
        check_revision(current_app.extensions["zeus_config"])
    except UnusableDatabase as error:
        logger.error("not ready: %s", error)  # noqa: TRY400 - the message says all
        # not here: it names hosts, users and paths, and this is open to all
        raise ServiceUnavailable("the database cannot be used; the log says why") from error
    return Health(status="ok", version=__version__)


@health.get("/metrics")
def get_metrics() -> ResponseReturnValue:
    """Metrics in Prometheus' text format."""
    require_access()
    return Response(metrics.exposition(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
