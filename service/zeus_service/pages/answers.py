"""How pages and figures are answered: their headers, 304, compression, and errors as pages."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from flask import Response, g, request
from flask import render_template as render
from werkzeug.exceptions import HTTPException

from zeus_service import __version__
from zeus_service.api.problems import problem, refused
from zeus_service.config import current_config
from zeus_service.pages import pages
from zeus_service.pages.plot import Figure

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

COMPRESSED = ("text/html", "text/css", "text/javascript", "application/json", "image/svg+xml")
"""Kinds of answers that become several times smaller."""


def page(
    template: str, version: tuple[object, ...], values: Callable[[], dict[str, Any]]
) -> Response:
    """Answer with a page; 304 if it has not changed."""
    shown = request.host, current_config(), g.may_write, g.is_signed_in, version
    return unless_unchanged(shown, "text/html", lambda: render(template, **values()))


def figures(version: tuple[object, ...], draw: Callable[[], dict[str, Figure]]) -> Response:
    """Answer with a page's figures by name, as JSON; 304 if they have not changed."""
    return unless_unchanged(
        version,
        "application/json",
        lambda: json.dumps(draw(), separators=(",", ":"), allow_nan=False),
    )


def unless_unchanged(
    version: tuple[object, ...], mimetype: str, make: Callable[[], str]
) -> Response:
    """Answer with what `make` returns; it is not called if the browser has this version."""
    response = Response(mimetype=mimetype)
    tagged = repr((__version__, request.full_path, version))
    response.set_etag(hashlib.sha256(tagged.encode(errors="replace")).hexdigest())
    if response.make_conditional(request).status_code != 304:
        response.data = make()
    return response


@pages.after_request  # the first one named is called last
def compress(response: Response) -> Response:
    """Compress an answer for a client that takes gzip; a file of trials is sent as it is read."""
    if response.mimetype in COMPRESSED and response.status_code != 304:
        response.vary.add("Accept-Encoding")
        if request.accept_encodings.quality("gzip"):
            response.direct_passthrough = False
            response.data = gzip.compress(response.get_data(), compresslevel=6, mtime=0)
            response.content_encoding = "gzip"
    return response


@pages.app_errorhandler(404)
@pages.app_errorhandler(405)  # a path of Zeus's wire that takes other methods alone
def show_unknown_path(error: HTTPException) -> Response:
    """Show what no route answers a browser as a page."""
    answer = refused(error)
    best = request.accept_mimetypes.best_match(["application/json", "text/html"])
    if request.blueprint or best != "text/html":
        return answer
    return _as_page(problem(404, "not_found", ""))


@pages.after_request
def _as_page(response: Response) -> Response:
    """Show each problem of a page as a page."""
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
