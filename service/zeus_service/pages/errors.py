"""Errors as pages, and the pages' headers."""

from __future__ import annotations

from http import HTTPStatus

from flask import Blueprint, Response, make_response
from flask import render_template as render
from sqlalchemy import exc
from werkzeug.exceptions import HTTPException

from zeus_service.api.problems import (
    RETRY_AFTER_S,
    log_broken,
    log_database_error,
)
from zeus_service.errors import NotFound, OptimizerError

HEADERS = {
    # No inline script, no other origin, in no frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def set_up_errors(pages: Blueprint) -> None:
    """Show every error as a page."""

    @pages.errorhandler(OptimizerError)
    def use_case_failed(error: OptimizerError) -> Response:
        log_broken(error)
        if isinstance(error, NotFound):  # the message is for a shell
            return error_page(
                error.status, "There is no such job or run; it may have been deleted."
            )
        return error_page(error.status, error.message)

    @pages.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        return error_page(error.code or 500, error.description or error.name)

    @pages.errorhandler(exc.DBAPIError)
    @pages.errorhandler(exc.TimeoutError)
    def database_failed(error: exc.DBAPIError | exc.TimeoutError) -> Response:
        log_database_error(error)
        return error_page(503, "The database cannot be used now; the service's log says why.")

    @pages.after_request
    def add_headers(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response


def error_page(status: int, detail: str) -> Response:
    """A page that names what failed; it tries again by itself while the database is away."""
    title = HTTPStatus(status).phrase
    response = make_response(render("error.html", status=status, title=title, detail=detail))
    response.status_code = status
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.retry_after = RETRY_AFTER_S
    return response
