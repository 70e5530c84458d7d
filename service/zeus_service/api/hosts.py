"""Which names of this service requests may use, so that no web page can reach it.

A web page whose name's address changes to 127.0.0.1 (DNS rebinding) reaches a service on loopback
as its own origin, but with its own name in `Host`. With tokens that is harmless: it has none.
"""

import ipaddress
from urllib.parse import urlsplit

from flask import Flask, request
from werkzeug.exceptions import Forbidden

from zeus_service.config import current_config


def set_up_hosts(app: Flask) -> None:
    """Refuse requests to unknown names, and those that a page of another origin sends."""
    app.before_request(_check_host)
    app.before_request(_check_origin)


def _check_host() -> None:
    config = current_config()
    if not config.hosts and (config.has_tokens or config.insecure):
        return  # it may have any name
    name = _hostname(request.host)
    if name not in config.hosts and not _is_loopback(name):
        raise Forbidden(
            f"{name!r} is no name of this service: use the address that it listens on, or add the "
            "name to ZEUS_BSO_ALLOWED_HOSTS"
        )


def _check_origin() -> None:
    origin = request.headers.get("Origin")
    if origin is None:
        return
    parts = urlsplit(origin)
    port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")  # browsers leave it out
    if parts.netloc.lower().removesuffix(port) != request.host.lower().removesuffix(port):
        raise Forbidden(
            f"a page of another origin ({origin}) may not use this service, which was asked as "
            f"{request.host!r}; a proxy in front must pass the browser's Host on"
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
