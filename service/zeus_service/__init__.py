"""The batch size service: jobs, trials and reports over HTTP, their state in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeus_service.version import __version__

if TYPE_CHECKING:
    from apiflask import APIFlask

    from zeus_service.config import Config


def create_app(config: Config | None = None) -> APIFlask:
    """Create the WSGI application; `config` is by default from the environment and `.env`.

    Raises:
        Unusable: A setting is invalid.
    """
    from zeus_service.app import make_app

    return make_app(config)


__all__ = ["__version__", "create_app"]
