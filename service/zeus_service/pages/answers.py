"""How pages and figures are answered: 304 if they have not changed, else compressed."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from typing import Any

from flask import Response, g, request
from flask import render_template as render

from zeus_service import __version__
from zeus_service.config import current_config
from zeus_service.pages.plot import Figure

COMPRESSED = ("text/html", "text/css", "text/javascript", "application/json", "image/svg+xml")
"""Kinds of answers that become several times smaller."""


def page(
    template: str, version: tuple[object, ...], values: Callable[[], dict[str, Any]]
) -> Response:
    """Answer with a page; 304 if it has not changed."""
    config = current_config()
    prices = config.currency, config.price_per_kwh, config.price_per_gpu_hour
    shown = request.host, g.viewer, prices, config.carbon_intensity, version
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


def compress(response: Response) -> Response:
    """Compress an answer for a client that takes gzip; a file of trials is sent as it is read."""
    if response.mimetype in COMPRESSED and response.status_code != 304:
        response.vary.add("Accept-Encoding")
        if request.accept_encodings.quality("gzip"):
            response.direct_passthrough = False
            response.data = gzip.compress(response.get_data(), compresslevel=6, mtime=0)
            response.content_encoding = "gzip"
    return response
