"""For starting gunicorn directly: `gunicorn -c gunicorn.conf.py zeus_service.wsgi:app`."""

from typing import Any

from zeus_service import create_app
from zeus_service.config import Config
from zeus_service.database import prepare
from zeus_service.server import SETTINGS

globals().update(SETTINGS)


def on_starting(server: Any) -> None:
    """Called once, before workers start."""
    del server
    config = Config()
    prepare(create_app(config), config)
