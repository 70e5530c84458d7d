"""For starting gunicorn directly: `gunicorn -c gunicorn.conf.py zeus_service.wsgi:app`.

Gunicorn executes this file at its start, and again on SIGHUP.
"""

import sys
from typing import Any

from zeus_service.errors import Unusable
from zeus_service.serving.gunicorn import make_ready, patch, server_config, settings

patch()

try:
    _config = server_config()
except Unusable as error:
    sys.exit(f"Error: {error}")

globals().update(settings(_config))


def on_starting(server: Any) -> None:
    """Called once, before workers start."""
    if server.cfg.preload_app or server.cfg.reuse_port:
        sys.exit("Error: preload_app and reuse_port are not supported: remove them")
    try:
        make_ready(_config)
    except Unusable as error:
        sys.exit(f"Error: {error}")
