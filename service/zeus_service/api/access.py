"""Who may use the service: by token, by the name it is called by, and by a page's origin.

Some tokens may read and write, some only read. A token comes as a bearer token (RFC 6750). The
clients of the Zeus project can only send it as the password of Basic authentication (RFC 7617),
from a URL like `http://zeus:TOKEN@host`; it is taken on their wire alone, since browsers send
passwords by themselves.

A web page whose name's address changes to 127.0.0.1 (DNS rebinding) reaches a service on loopback
as its own origin, but with its own name in `Host`. With tokens that is harmless: it has none.
"""

import hmac
import ipaddress
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from flask import Flask, request
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, Unauthorized

from zeus_service import counters
from zeus_service.config import current_config

logger = logging.getLogger(__name__)

REFUSAL_S = 0.5
"""How long the refusal of a token takes. Those to one address wait for one another."""

MAX_WAITING = MAX_ADDRESSES = 5
"""How many refusals to one address wait in a worker, and to how many addresses. Beyond, they are
answered at once, so that guesses hold few connections."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})


def set_up_access(app: Flask) -> None:
    """Refuse requests to unknown names, and those that a page of another origin sends."""
    app.before_request(_check_host)
    app.before_request(_check_origin)


def require_access() -> None:
    """Check a request's token, if tokens are configured; to be called before each request."""
    given = bearer(request.headers.get("Authorization", ""))
    how = "this service requires a valid token (`Authorization: Bearer TOKEN`)"
    _check(given, how, "bearer", writes=request.method not in READING)


def require_access_by_password() -> None:
    """Like `require_access`, on the wire of the Zeus project's clients, where a GET writes too."""
    basic = request.authorization
    if basic and basic.type == "basic":
        given = (basic.password or "").encode()
    else:
        given = bearer(request.headers.get("Authorization", ""))
    how = (
        "this service needs a token; put it into the server's URL as the password, with any user "
        "name: http://zeus:TOKEN@HOST:PORT"
    )
    _check(given, how, "basic", writes=True)


def _check(given: bytes, how: str, scheme: str, *, writes: bool) -> None:
    if not current_config().has_tokens:
        return
    allowed = may_write(given)
    if allowed is None:
        if given:
            delay_refusal("api")
        challenge = WWWAuthenticate(scheme, {"realm": "zeus-service"})
        raise Unauthorized(how, www_authenticate=challenge)
    if writes and not allowed:
        raise Forbidden("this token is read-only; use one that may write")


def is_browser() -> bool:
    """Whether a request has a header that browsers send and the clients of this service do not.

    A page cannot remove all of them: where it is not told apart by `Sec-Fetch-*`, which browsers
    leave out without TLS, there is still the language that the browser prefers.
    """
    names = {name.lower() for name, _ in request.headers}
    return (
        not names.isdisjoint(("origin", "referer", "cookie", "accept-language"))
        or any(name.startswith("sec-fetch-") for name in names)
        or any(kind in request.headers.get("Accept", "") for kind in ("text/html", "image/"))
        or request.headers.get("User-Agent", "").startswith("Mozilla/")
    )


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


def delay_refusal(where: str) -> None:
    """Count and log the refusal of a token, and wait for the turn of the client's address.

    A valid token never waits: the proxy in front may have sent both from one address. So this slows
    only those who wait for an answer before they guess again; a token that is long enough does the
    rest.

    Args:
        where: Where the token was sent to: `api` or `sign_in`.
    """
    address = request.remote_addr or ""
    counters.tokens_refused.labels(where).inc()
    logger.warning("a token was refused", extra={"fields": {"address": address}})
    now = time.monotonic()
    for each in [each for each, turn in _turns.items() if turn <= now]:
        del _turns[each]
    turn = max(now, _turns.get(address, now)) + REFUSAL_S
    is_other = address not in _turns and len(_turns) == MAX_ADDRESSES
    if is_other or turn - now > MAX_WAITING * REFUSAL_S:
        return
    _turns[address] = turn
    time.sleep(turn - now)


_turns: dict[str, float] = {}
"""When the last refusal that waits is answered, by address; of this worker."""


def _check_host() -> None:
    config = current_config()
    if not config.hosts and (config.has_tokens or config.insecure):
        return  # it may have any name
    name = _hostname(request.host)
    if name not in config.hosts and not _is_loopback(name):
        raise Forbidden(f"unknown host name {name!r}; add it to ZEUS_BSO_ALLOWED_HOSTS")


def _check_origin() -> None:
    origin = request.headers.get("Origin")
    if origin is None:
        return
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as an unclosed bracket
        raise Forbidden("the Origin header is not valid") from None
    port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")  # browsers leave it out
    if parts.netloc.lower().removesuffix(port) != request.host.lower().removesuffix(port):
        raise Forbidden(
            f"cross-origin request from {origin} to {request.host!r} refused; a proxy must pass on "
            "the browser's Host header"
        )


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as an unclosed bracket
        return ""


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
