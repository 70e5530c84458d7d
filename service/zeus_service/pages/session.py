"""Who looks at a page: a signed cookie stands for the token that was given to sign in.

The cookie has a random id and a keyed hash of the token, so it ends when it expires, and when the
token is no longer configured. The HTTP interface takes no cookie, so that no other site can use it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from flask import Response, current_app, request
from itsdangerous import BadData, SignatureExpired, URLSafeTimedSerializer
from werkzeug.exceptions import Forbidden

from zeus_service.api.access import bearer, delay_refusal, may_write
from zeus_service.config import current_config
from zeus_service.db import secret_key

MAX_AGE_S = 12 * 3600
"""A sign-in lasts for a working day."""

_COOKIE = "zeus"
_SECURE_COOKIE = "__Host-zeus"
_KEY = "zeus_session_key"


@dataclass(frozen=True)
class Session:
    """A person or program that may look at pages.

    Args:
        id: Random, of this sign-in; empty if requests need no token.
        may_write: Whether it may change anything.
        is_signed_in: Whether it has a cookie.
    """

    id: str
    may_write: bool
    is_signed_in: bool = False


def current() -> Session | None:
    """The session of this request, or None."""
    if not current_config().has_tokens:
        return Session("", may_write=True)
    given = bearer(request.headers.get("Authorization", ""))
    if given:
        writes = may_write(given)
        if writes is None:
            delay_refusal("api")
            return None
        return Session("", writes)
    cookie = request.cookies.get(_SECURE_COOKIE) or request.cookies.get(_COOKIE)
    if not cookie:
        return None
    try:
        session_id, fingerprint = _loads("session", cookie)
    except (BadData, TypeError, ValueError):
        return None
    writes = may_write(fingerprint.encode(), _fingerprint)
    return None if writes is None else Session(session_id, writes, is_signed_in=True)


def sign_in(token: str, response: Response) -> bool:
    """Put a cookie into the response if this is a token of the service."""
    if may_write(token.encode()) is None:
        return False
    cookie = _signer("session").dumps([secrets.token_hex(16), _fingerprint(token)])
    secure = _is_secure()
    response.set_cookie(
        _SECURE_COOKIE if secure else _COOKIE,
        cookie,
        max_age=MAX_AGE_S,
        secure=secure,
        httponly=True,
        samesite="Strict",
    )
    return True


def sign_out(response: Response) -> None:
    """Remove the cookie."""
    for name, secure in ((_COOKIE, False), (_SECURE_COOKIE, True)):
        if name in request.cookies:
            response.delete_cookie(name, secure=secure, httponly=True, samesite="Strict")


def form_token(session: Session | None) -> str:
    """What a form of this session carries, so that no other site can send it."""
    return str(_signer("form").dumps(session.id if session else ""))


def check_form(session: Session | None) -> None:
    """Raise `Forbidden` unless the form was made for this session, and not too long ago."""
    try:
        made_for = _loads("form", request.form.get("csrf", ""))
    except BadData:
        made_for = None
    if made_for != (session.id if session else ""):
        raise Forbidden("This form is too old, or of another sign-in: go back and try again.")


def _is_secure() -> bool:
    """Whether the browser uses TLS: its form's `Origin` says so where a proxy ends TLS."""
    return request.is_secure or urlsplit(request.headers.get("Origin", "")).scheme == "https"


def _fingerprint(token: str) -> str:
    return hmac.new(_key().encode(), token.encode(), hashlib.sha256).hexdigest()


def _signer(purpose: str) -> URLSafeTimedSerializer:
    digest = {"digest_method": hashlib.sha256}
    return URLSafeTimedSerializer(_key(), salt=f"zeus-service {purpose}", signer_kwargs=digest)


def _loads(purpose: str, value: str) -> Any:
    """What was signed, if that is not too long ago.

    Another replica may have signed it, whose clock is ahead of this one's: `loads` with `max_age`
    would refuse what seems to be signed in the future.

    Raises:
        BadData: It has another signature, or is too old.
    """
    content, signed_at = _signer(purpose).loads(value, return_timestamp=True)
    if datetime.now(UTC) - signed_at > timedelta(seconds=MAX_AGE_S):
        raise SignatureExpired("it was signed too long ago")
    return content


def _key() -> str:
    key = current_config().secret_key
    if key is not None:
        return key.get_secret_value()
    if _KEY not in current_app.extensions:
        current_app.extensions[_KEY] = secret_key.read_or_make()
    return str(current_app.extensions[_KEY])
