"""An id, a log line and a count in the metrics for every request."""

import functools
import logging
import re
import time
import uuid

from flask import Flask, Response, g, request

from zeus_service.api.metrics import count_request

logger = logging.getLogger(__name__)

REQUEST_ID_PATTERN = "[A-Za-z0-9._:=/+-]{1,128}"


@functools.cache
def _path(rule: str) -> str:
    """A route's path as in OpenAPI: `/jobs/{job_id}`, whatever converts the id."""
    return re.sub(r"<(?:[^<>]*:)?(\w+)>", r"{\1}", rule)


def set_up_request_log(app: Flask) -> None:
    """Log and count every request, and assign an id to it."""

    @app.before_request
    def begin() -> None:
        g.began = time.perf_counter()
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if re.fullmatch(REQUEST_ID_PATTERN, given) else uuid.uuid4().hex

    @app.after_request
    def end(response: Response) -> Response:
        seconds = time.perf_counter() - g.began
        response.headers["X-Request-ID"] = g.request_id
        route = _path(request.url_rule.rule) if request.url_rule else ""
        count_request(request.method, route, response.status_code, seconds)
        fields = {"method": request.method, "route": route, "status": response.status_code}
        fields["milliseconds"] = round(seconds * 1000, 1)
        if job_id := g.get("job_id") or (request.view_args or {}).get("job_id"):
            fields["job_id"] = job_id
        logger.info("request", extra={"fields": fields})
        return response
