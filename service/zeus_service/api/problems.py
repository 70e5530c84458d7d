"""Errors as `application/problem+json` (RFC 9457), and their description in `/openapi.json`."""

import logging
from http import HTTPStatus
from typing import Any

from apiflask import APIFlask, HTTPError
from flask import Response, current_app
from sqlalchemy import exc
from werkzeug.exceptions import HTTPException

from zeus_service.api.body import MAX_BODY_BYTES
from zeus_service.db.engine import cause
from zeus_service.errors import OptimizerError

logger = logging.getLogger(__name__)

HTTP_ERRORS = {
    400: ("malformed", "The body is not a JSON object."),
    401: ("unauthorized", "No valid token was sent."),
    403: ("forbidden", "This token may only read."),
    404: ("not_found", "No such job or trial, or the id is malformed."),
    405: ("method_not_allowed", "A number in the path is out of range."),
    413: ("too_large", f"The body is longer than {MAX_BODY_BYTES} bytes."),
    415: ("unsupported_media_type", "The body is not declared as application/json."),
    422: ("invalid", "A field, parameter or header has no valid value; `errors` says which."),
    500: ("internal_server_error", "The service has a defect; its log has the traceback."),
    503: ("unavailable", "The database cannot be used now; try again."),
}
"""Code and description of the errors that any route may return, by status."""

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


def conflicts(*errors: type[OptimizerError]) -> dict[int, Any]:
    """Describe the conflicts of a route, for APIFlask's `doc(responses=...)`."""
    return {409: problem_schema(409, {error.code: str(error.__doc__) for error in errors})}


def problem_schema(status: int, codes: dict[str, str]) -> dict[str, Any]:
    """OpenAPI's description of a problem response with one of these codes."""
    exact = {"status": {"const": status}, "code": {"enum": list(codes)}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": exact}]}
    return {
        "description": " ".join(f"`{code}`: {text}" for code, text in codes.items()),
        "content": {"application/problem+json": {"schema": schema}},
    }


def set_up_errors(app: APIFlask) -> None:
    """Convert every error of the application to a problem response.

    Flask logs any other exception with its traceback, and raises it as `InternalServerError`.
    """

    @app.errorhandler(OptimizerError)
    def use_case_failed(error: OptimizerError) -> Response:
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # the client cannot have caused it
            error.log(logger)
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

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        status = error.code or 500
        detail = HTTP_ERRORS[500][1] if status == 500 else error.description or error.name
        answer = problem(status, _code(status), detail)
        for name, value in error.get_headers():  # Allow, WWW-Authenticate, Retry-After
            if name != "Content-Type":
                answer.headers[name] = value
        return answer

    @app.errorhandler(exc.DBAPIError)
    @app.errorhandler(exc.TimeoutError)
    def database_failed(error: exc.DBAPIError | exc.TimeoutError) -> Response:
        if isinstance(error, exc.IntegrityError | exc.DataError):
            raise error  # the service's own defect
        logger.error("database: %s", cause(error))
        # the reason may name the database's host, port and user
        detail = "the database cannot be used now; the service's log says why"
        return problem(503, _code(503), detail)


def _code(status: int) -> str:
    return HTTP_ERRORS[status][0] if status in HTTP_ERRORS else HTTPStatus(status).name.lower()
