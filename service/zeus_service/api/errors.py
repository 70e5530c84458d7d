"""Errors as `application/problem+json` (RFC 9457).

Beside the standard members, `code` names the error for programs.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from apiflask import APIFlask, HTTPError
from flask import Response, current_app
from sqlalchemy import exc
from werkzeug.exceptions import HTTPException

from zeus_service import errors
from zeus_service.connections import cause

logger = logging.getLogger(__name__)

_STATUS: dict[type[errors.OptimizerError], tuple[int, str]] = {
    errors.NotFound: (404, "not_found"),
    errors.JobConflict: (409, "job_conflict"),
    errors.JobBusy: (409, "job_busy"),
    errors.Contended: (503, "unavailable"),
    errors.UnknownPolicy: (422, "invalid"),
    errors.KeyConflict: (409, "key_conflict"),
    errors.ReportConflict: (409, "report_conflict"),
    errors.TrialFinished: (409, "trial_finished"),
    errors.ExhaustedJob: (409, "no_batch_size_left"),
}
_CODES = {400: "malformed", 404: "not_found", 413: "too_large", 422: "invalid", 503: "unavailable"}

RETRY_AFTER_S = 1
"""What passes by itself passes soon, and clients wait longer by themselves."""


def problem(status: int, code: str, detail: str, **fields: Any) -> Response:
    """A problem response; `fields` become further members."""
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


def set_up_errors(app: APIFlask) -> None:
    """Give every error of the application the one form."""

    @app.errorhandler(errors.OptimizerError)
    def use_case_failed(error: errors.OptimizerError) -> Response:
        status, code = _STATUS[type(error)]
        return problem(status, code, error.message, **error.fields)

    @app.errorhandler(HTTPError)
    def invalid(error: HTTPError) -> Response:
        if error.status_code != 422:
            return problem(error.status_code, _code(error.status_code), str(error.message))
        found = {
            field or location: messages
            for location, fields in error.detail.items()
            for field, messages in fields.items()
        }
        summary = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in found.items())
        return problem(422, "invalid", summary, errors=found)

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        status = error.code or 500
        answer = problem(status, _code(status), error.description or error.name)
        for name, value in error.get_headers():  # Allow, WWW-Authenticate, Retry-After
            if name != "Content-Type":
                answer.headers[name] = value
        return answer

    @app.errorhandler(exc.DBAPIError)
    @app.errorhandler(exc.TimeoutError)
    def database_failed(error: exc.DBAPIError | exc.TimeoutError) -> Response:
        if isinstance(error, exc.IntegrityError | exc.DataError):
            raise error  # ours, not the database's
        said = cause(error)
        logger.error("database: %s", said)
        return problem(503, "unavailable", f"the database cannot be used: {said}")


def _code(status: int) -> str:
    return _CODES.get(status, HTTPStatus(status).name.lower())
