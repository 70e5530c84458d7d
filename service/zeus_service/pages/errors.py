"""Errors as pages, and the pages' headers."""

from __future__ import annotations

from http import HTTPStatus

from flask import Blueprint, Response, request
from flask import render_template as render
from werkzeug.exceptions import HTTPException

from zeus_service.api.problems import problem, refused

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
    """Show each problem of a page, and what no route answers a browser, as a page."""

    @pages.after_request
    def show_problem(response: Response) -> Response:
        return _as_page(response)

    @pages.app_errorhandler(404)
    @pages.app_errorhandler(405)  # a path of Zeus's wire that takes other methods alone
    def show_unknown_path(error: HTTPException) -> Response:
        answer = refused(error)
        best = request.accept_mimetypes.best_match(["application/json", "text/html"])
        if request.blueprint or best != "text/html":
            return answer
        return _as_page(problem(404, "not_found", ""))


def _as_page(response: Response) -> Response:
    if response.mimetype == "application/problem+json":
        found = response.get_json()
        if response.status_code == HTTPStatus.NOT_FOUND:  # the detail is for a shell
            found["detail"] = "There is no such page, job or run; it may have been deleted."
        response.set_data(render("error.html", **found))
        response.mimetype = "text/html"
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "private, no-cache")
    return response
