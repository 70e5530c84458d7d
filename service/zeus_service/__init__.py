"""The batch size service: jobs, trials and reports over HTTP, beliefs in a database."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apiflask import APIFlask

    from zeus_service.config import Config

__version__ = version("zeus-lightning")


def create_app(config: Config | None = None) -> APIFlask:
    """Make the WSGI application.

    Args:
        config: Default: from the environment and `.env`.

    Raises:
        pydantic.ValidationError: A variable of the environment has no valid value.
    """
    from zeus_service.application import make_app

    return make_app(config)


__all__ = ["__version__", "create_app"]
