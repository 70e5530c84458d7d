"""The configuration of a server's workers: the master reads it, and they inherit it.

So a worker that replaces another has the same one, whatever the environment says by then.
"""

from __future__ import annotations

from typing import Any

from zeus_service.config import Config, load_config
from zeus_service.errors import Unusable
from zeus_service.serving.address import check_access

_in_force: Config | None = None


def in_force() -> Config:
    """The configuration, which the first call reads; raise `Unusable` if it is invalid."""
    global _in_force
    if _in_force is None:
        _in_force = load_config()
    return _in_force


def reload(arbiter: Any) -> None:
    """Read the configuration anew, in the master on SIGHUP, before it replaces the workers.

    One that the service could not have started with is logged and changes nothing.
    """
    global _in_force
    # After gevent's patch: the application imports what it replaces.
    from zeus_service import create_app
    from zeus_service.db.migrate import prepare

    try:
        read = load_config()
        check_access(read, [listener.sock for listener in arbiter.LISTENERS])
        prepare(create_app(read))
    except Unusable as error:
        message = "the configuration stays as it was: %s"
        arbiter.log.error(message, error)  # noqa: TRY400 - a traceback adds nothing
        return
    _in_force = read
    # Gunicorn has read its settings from the configuration before, such as the log's level.
    arbiter.app.reload()
    arbiter.setup(arbiter.app)
