"""Signing in and out, and what needs it: every page but the form itself and the files."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from flask import Blueprint, Response, g, make_response, redirect, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import Forbidden, Unauthorized

from zeus_service.api.access import delay_refusal
from zeus_service.pages import session
from zeus_service.pages.templating import render

_OPEN = frozenset({"pages.asset", "pages.sign_in_form", "pages.sign_in"})


def set_up_access(pages: Blueprint) -> None:
    """Require a session for every page, and add the routes that begin and end one."""
    pages.before_request(_require_session)
    pages.get("/sign-in")(sign_in_form)
    pages.post("/sign-in")(sign_in)
    pages.post("/sign-out")(sign_out)


def require_writing() -> None:
    """Raise `Forbidden` for those who may only read, and for forms of another site."""
    if not g.session.may_write:
        raise Forbidden("You signed in with a token that may only read.")
    if request.method == "POST":
        session.check_form(g.session)


def sign_in_form() -> ResponseReturnValue:
    """The form that takes a token."""
    return _form("")


def sign_in() -> ResponseReturnValue:
    """Begin a session."""
    session.check_form(None)
    response = make_response(redirect(_next(request.form.get("next", "")), 303))
    if session.sign_in(request.form.get("token", "").strip(), response):
        return response
    delay_refusal("sign_in")
    return _form("This token is not valid for this service."), 401


def sign_out() -> ResponseReturnValue:
    """End a session."""
    session.check_form(g.session)
    response = make_response(redirect("/sign-in", 303))
    session.sign_out(response)
    return response


def _require_session() -> Response | None:
    if request.endpoint in _OPEN:
        return None
    found = session.current()
    if found is not None:
        g.session = found
        return None
    is_page = request.method == "GET" and "part" not in request.args
    if not (is_page and request.accept_mimetypes.accept_html):
        raise Unauthorized("Sign in, or send a token of this service as a bearer token.")
    query = f"?{request.query_string.decode('latin-1')}" if request.query_string else ""
    address = urlencode({"next": f"{quote(request.path)}{query}"})
    return make_response(redirect(f"/sign-in?{address}", 303))


def _form(problem: str) -> str:
    wanted = _next(request.values.get("next", ""))
    return render("sign_in.html", csrf=session.form_token(None), next=wanted, problem=problem)


def _next(address: str) -> str:
    """The page to go to after the sign-in: one of this service, or the first."""
    own = address.replace("\\", "/")  # as browsers do
    is_own = own.startswith("/") and not own.startswith("//")
    return address if is_own and address.isprintable() else "/"
