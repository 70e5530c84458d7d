"""Access control by tokens: some may read and write, some only read.

A token comes as a bearer token (RFC 6750). The clients of the Zeus project can only send it as the
password of Basic authentication (RFC 7617), from a URL like `http://zeus:TOKEN@host`; it is taken
on their wire alone, since browsers send passwords by themselves.
"""

import hmac
from collections.abc import Callable

from flask import request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from zeus_service.config import current_config

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def require_access() -> None:
    """Check a request's token, if tokens are configured; to be called before each request."""
    given = bearer(request.headers.get("Authorization", ""))
    how = "send a token of this service as `Authorization: Bearer TOKEN`"
    _check(given, how, "bearer", writes=request.method not in READING)


def require_access_by_password() -> None:
    """Like `require_access`, on the wire of the Zeus project's clients, where a GET writes too."""
    basic = request.authorization
    if basic and basic.type == "basic":
        given = (basic.password or "").encode()
    else:
        given = bearer(request.headers.get("Authorization", ""))
    how = (
        "this service needs a token: put it into the server's URL as the password, "
        "http://zeus:TOKEN@HOST:PORT, with any user name"
    )
    _check(given, how, "basic", writes=True)


def _check(given: bytes, how: str, scheme: str, *, writes: bool) -> None:
    if not current_config().has_tokens:
        return
    allowed = may_write(given)
    if allowed is None:
        challenge = WWWAuthenticate(scheme, {"realm": "zeus-service"})
        raise Unauthorized(how, www_authenticate=challenge)
    if writes and not allowed:
        raise Forbidden("this token may only read")


def bearer(header: str) -> bytes:
    """The token in an `Authorization` header; empty without one."""
    scheme, _, token = header.partition(" ")
    return token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def may_write(given: bytes, form: Callable[[str], str] = str) -> bool | None:
    """Whether a token may write, or only read; None if it is none of the service's.

    Tokens are compared in constant time, so that the duration leaks nothing of them.

    Args:
        given: The token, or another form of it.
        form: Converts a token to that form.
    """
    config = current_config()
    for tokens, writes in ((config.tokens, True), (config.read_tokens, False)):
        if sum(hmac.compare_digest(given, form(token).encode()) for token in tokens):
            return writes
    return None
