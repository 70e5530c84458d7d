"""Errors as pages, and the pages' headers."""

from __future__ import annotations

from http import HTTPStatus

from flask import Blueprint, Response
from flask import render_template as render

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
    """Show each problem as a page."""

    @pages.after_request
    def show_problem(response: Response) -> Response:
        if response.mimetype == "application/problem+json":
            problem = response.get_json()
            if response.status_code == HTTPStatus.NOT_FOUND:  # the detail is for a shell
                problem["detail"] = "There is no such job or run; it may have been deleted."
            response.set_data(render("error.html", **problem))
            response.mimetype = "text/html"
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "private, no-cache")
        return response
