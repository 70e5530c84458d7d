"""Who may do what: bearer tokens (RFC 6750), one kind to read and write and one to read."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from flask import current_app, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from zeus_service.config import Config

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def require_access() -> None:
    """Let in who may: everyone, when there are no tokens. To be called before each request.

    Raises:
        Unauthorized: The request has no token of ours.
        Forbidden: It would write, and its token may only read.
    """
    config: Config = current_app.extensions["zeus_config"]
    if not config.has_tokens:
        return
    given = _bearer(request.headers.get("Authorization", ""))
    writes = _is_one_of(given, config.tokens)
    reads = _is_one_of(given, config.read_tokens)
    if not (writes or reads):
        raise Unauthorized(
            "send a token of this service as `Authorization: Bearer TOKEN`",
            www_authenticate=WWWAuthenticate("bearer", {"realm": "zeus-service"}),
        )
    if not writes and request.method not in READING:
        raise Forbidden("this token may only read")


def _bearer(header: str) -> bytes:
    scheme, _, token = header.partition(" ")
    return token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _is_one_of(given: bytes, tokens: Iterable[str]) -> bool:
    """Compare with every token, each in constant time: how long it takes tells nothing."""
    return sum(hmac.compare_digest(given, token.encode()) for token in tokens) > 0
