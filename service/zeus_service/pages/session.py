"""Who looks at a page: signing in and out, and the cookie that stands for a token.

The cookie has a keyed hash of the token, signed with a key in the database, and no role: it ends
when it expires, and when the token is no longer configured. `/api/v1` takes no cookie. No page of
another site can send the forms: the cookie is `SameSite=Strict`, and `api.access` refuses what
another origin sends.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode, urlsplit

from flask import Response, current_app, g, make_response, redirect, request
from flask import render_template as render
from flask.typing import ResponseReturnValue
from itsdangerous import BadData, URLSafeTimedSerializer
from werkzeug.exceptions import Forbidden, Unauthorized

from zeus_service.api.access import bearer, delay_refusal, may_write
from zeus_service.config import current_config
from zeus_service.db import queries
from zeus_service.pages import pages

COOKIE = "zeus"
MAX_AGE_S = 12 * 3600
"""A sign-in lasts for a working day."""

_OPEN = frozenset({"pages.static", "pages.sign_in_form", "pages.sign_in"})
"""What needs no token: the form itself and the files."""


def require_writing() -> None:
    """Raise `Forbidden` for those who may only read."""
    if not g.may_write:
        raise Forbidden("You signed in with a read-only token; sign in with one that may write.")


@pages.get("/sign-in")
def sign_in_form() -> ResponseReturnValue:
    """The form that takes a token."""
    return render("sign_in.html", next=_next(request.args.get("next", "")), problem="")


@pages.post("/sign-in")
def sign_in() -> ResponseReturnValue:
    """Set the cookie if the form has a token of the service."""
    token = request.form.get("token", "").strip()
    wanted = _next(request.form.get("next", ""))
    if may_write(token.encode()) is None:
        delay_refusal("sign_in")
        problem = "This token is not valid for this service."
        return render("sign_in.html", next=wanted, problem=problem), 401
    response = make_response(redirect(wanted, 303))
    # A proxy may end TLS: the browser's `Origin` says whether it uses TLS.
    secure = request.is_secure or urlsplit(request.headers.get("Origin", "")).scheme == "https"
    response.set_cookie(
        COOKIE,
        str(_serializer().dumps({"token": _fingerprint(token)})),
        max_age=MAX_AGE_S,
        secure=secure,
        httponly=True,
        samesite="Strict",
    )
    return response


@pages.post("/sign-out")
def sign_out() -> ResponseReturnValue:
    """Remove the cookie."""
    response = make_response(redirect("/sign-in", 303))
    response.delete_cookie(COOKIE, httponly=True, samesite="Strict")
    return response


@pages.before_request
def _require_viewer() -> Response | None:
    if request.endpoint in _OPEN:
        return None
    g.may_write = _may_write()
    g.is_signed_in = current_config().has_tokens and COOKIE in request.cookies
    if g.may_write is not None:
        return None
    if request.method != "GET" or not request.accept_mimetypes.accept_html:
        raise Unauthorized("Sign in, or send a valid bearer token.")
    query = f"?{request.query_string.decode('latin-1')}" if request.query_string else ""
    address = urlencode({"next": f"{quote(request.path)}{query}"})
    return make_response(redirect(f"/sign-in?{address}", 303))


def _may_write() -> bool | None:
    """Whether a request may write, or only read; None without a valid token or cookie."""
    if not current_config().has_tokens:
        return True
    given = bearer(request.headers.get("Authorization", ""))
    if not given:
        cookie = request.cookies.get(COOKIE)
        return may_write(_read(cookie).encode(), _fingerprint) if cookie else None
    writes = may_write(given)
    if writes is None:
        delay_refusal("api")
    return writes


def _read(cookie: str) -> str:
    """The fingerprint in a cookie; empty if it was not signed here, or too long ago."""
    try:
        # Not with `max_age`, which refuses what a replica signed whose clock is ahead.
        content, signed_at = _serializer().loads(cookie, return_timestamp=True)
    except BadData:
        return ""
    is_old = datetime.now(UTC) - signed_at > timedelta(seconds=MAX_AGE_S)
    return "" if is_old else str(content.get("token", ""))


def _fingerprint(token: str) -> str:
    return hmac.new(_key().encode(), token.encode(), hashlib.sha256).hexdigest()


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(_key(), salt=COOKIE)


def _key() -> str:
    """The key in the database, which is read when it is first needed."""
    if current_app.secret_key is None:
        current_app.secret_key = queries.signing_key()
    return str(current_app.secret_key)


def _next(address: str) -> str:
    """The page to go to after the sign-in: one of this service, or the first."""
    own = address.replace("\\", "/")  # as browsers do
    is_own = own.startswith("/") and not own.startswith("//")
    return address if is_own and address.isprintable() else "/"
