"""Errors as `application/problem+json` (RFC 9457)."""

import logging
from http import HTTPStatus
from typing import Any

from apiflask import APIFlask, HTTPError
from flask import Response, current_app
from gunicorn.http.errors import ParseException
from sqlalchemy import exc
from werkzeug.exceptions import HTTPException

from zeus_service.db.session import cause
from zeus_service.errors import Contended, OptimizerError

logger = logging.getLogger(__name__)

CODES = {
    400: "malformed",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    500: "internal_server_error",
    503: "unavailable",
}
"""The codes of errors that any route may return, by status."""

RETRY_AFTER_S = 1
"""Short: most causes pass soon, and clients back off by themselves."""


def problem(status: int, code: str, detail: str, **fields: Any) -> Response:
    """A problem response. `code` names the error for programs; `fields` are further members."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        **fields,
    }
    response = Response(current_app.json.dumps(body), status, mimetype="application/problem+json")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.retry_after = RETRY_AFTER_S
    return response


def refused(error: HTTPException) -> Response:
    """The problem response to an error of HTTP."""
    status = error.code or 500
    detail = error.description or error.name
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        detail = "Internal server error; see the traceback in the service's log."
    answer = problem(status, _code(status), detail)
    for name, value in error.get_headers():  # Allow, WWW-Authenticate, Retry-After
        if name != "Content-Type":
            answer.headers[name] = value
    return answer


def set_up_errors(app: APIFlask) -> None:
    """Convert every error of the application to a problem response.

    Flask logs any other exception with its traceback, and raises it as `InternalServerError`.
    """

    @app.errorhandler(OptimizerError)
    def use_case_failed(error: OptimizerError) -> Response:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # the client cannot have caused it
            reason = getattr(error.__cause__, "orig", None) or ""  # what the database says
            level = logging.WARNING if isinstance(error, Contended) else logging.ERROR
            logger.log(level, "%s", f"{error.message} {reason}".rstrip())
        return problem(error.status, error.code, error.message, **error.fields)

    @app.errorhandler(HTTPError)
    def invalid(error: HTTPError) -> Response:
        found = {
            field or location: messages
            for location, fields in error.detail.items()
            for field, messages in fields.items()
        }
        summary = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in found.items())
        return problem(422, _code(422), summary, errors=found)

    app.register_error_handler(HTTPException, refused)

    @app.errorhandler(ParseException)
    def malformed(error: ParseException) -> Response:
        return problem(400, _code(400), f"the body cannot be read: {error}")

    @app.errorhandler(exc.DBAPIError)
    @app.errorhandler(exc.TimeoutError)
    def database_failed(error: exc.DBAPIError | exc.TimeoutError) -> Response:
        if isinstance(error, exc.IntegrityError | exc.DataError):
            raise error  # the service's own defect
        logger.error("database: %s", cause(error))
        # the reason may name the database's host, port and user
        detail = "the database is unavailable; see the service's log"
        return problem(503, _code(503), detail)


def _code(status: int) -> str:
    return CODES.get(status, HTTPStatus(status).name.lower())
