"""The service under gunicorn."""

from __future__ import annotations

import socket
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

SETTINGS: dict[str, Any] = {
    "worker_class": "gthread",
    "threads": 8,
    "keepalive": 75,
    "graceful_timeout": 30,
    "timeout": 60,
    "control_socket_disable": True,  # it would be made in the home directory
}
"""For both ways of starting gunicorn: `zeus-service serve` and `service/gunicorn.conf.py`."""


class UnusableAddress(Exception):
    """The address cannot be listened on; the message names it and the remedy."""


class Server(BaseApplication):
    """gunicorn with this service's settings, for `run()`.

    Each worker makes its own application, so that no database connection crosses a fork.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = {**SETTINGS, **settings}
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self.settings.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in each worker."""
        from zeus_service import create_app

        return create_app()


def check_bind(bind: str) -> None:
    """Check that `HOST:PORT` can be listened on: gunicorn would try again for five seconds.

    Raises:
        UnusableAddress: It is no address, or in use, or not this machine's.
    """
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UnusableAddress(f"{bind!r} is not HOST:PORT, such as 127.0.0.1:8765")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise UnusableAddress(
                f"cannot listen on {bind}: {error.strerror}; choose another with --bind"
            ) from error
