"""The service under gunicorn, started by `zeus-service serve` or by `service/gunicorn.conf.py`."""

import resource
import signal
import sys
from itertools import count
from typing import Any

from flask import Flask
from gevent import monkey
from gunicorn.app.base import BaseApplication

from zeus_service.config import Config
from zeus_service.errors import Unusable
from zeus_service.serving import configuration, worker_metrics
from zeus_service.serving.address import check_access
from zeus_service.serving.logging import LOGGERS

CONNECTIONS = 5000
"""Client connections per worker, idle ones included, at about 20 kB of memory each. A worker that
has this many accepts no other, and health checks wait."""

OTHER_FILES = 200
"""Files that a worker opens beside: listeners, connections to the database, metrics, logs."""

KEEPALIVE_S = 10
"""How long a connection may be idle, and a request's head may take to arrive. A worker that ends
waits for idle connections, so a restart may take this long, too."""


def patch() -> None:
    """Replace blocking calls by gevent's, so that a worker serves others while it waits.

    Only the entry points of serving call this, first of all: psycopg chooses at import how to wait,
    and would block the whole worker during each query.
    """
    if "psycopg" in sys.modules and not monkey.is_module_patched("select"):
        raise RuntimeError("psycopg was imported before gevent's patch")
    monkey.patch_all()


def settings(config: Config) -> dict[str, Any]:
    """Gunicorn's settings, for both ways of starting it."""

    def when_ready(server: Any) -> None:  # it listens, and has no workers yet
        try:
            check_access(config, [listener.sock for listener in server.LISTENERS])
        except Unusable as error:
            raise SystemExit(f"Error: {error}") from error
        worker_metrics.give_to(server.cfg.uid, server.cfg.gid)

    return {
        "worker_class": "gevent",
        "worker_connections": allow_connections(),
        "keepalive": KEEPALIVE_S,
        "graceful_timeout": 30,
        "timeout": 60,
        # Headers like SCRIPT_NAME, PATH_INFO and X-Forwarded-Proto change nothing.
        "forwarded_allow_ips": "",
        "forwarder_headers": "",
        "control_socket_disable": True,  # it would be created in the home directory
        "loglevel": config.log_level.lower(),
        "logger_class": LOGGERS[config.log_format],
        "when_ready": when_ready,
        "on_reload": configuration.reload,
        "pre_fork": number_worker,
        "post_fork": begin_worker,
        "post_worker_init": check_worker,
    }


def allow_connections() -> int:
    """Raise this process's limit of open files, which workers inherit, for `CONNECTIONS`.

    Returns:
        As many connections as the hard limit allows: a worker without a file left could accept
        none, but would try to without end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CONNECTIONS + OTHER_FILES
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed - OTHER_FILES, 1)


class Server(BaseApplication):
    """gunicorn with this service's settings, for `run()`.

    Each worker creates its own application, so that no database connection crosses a fork.
    """

    def __init__(self, **more: Any) -> None:
        self.more = more
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn, at the start and on SIGHUP."""
        for name, value in {**settings(configuration.in_force()), **self.more}.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in each worker."""
        from zeus_service import create_app

        return create_app(configuration.in_force())


def number_worker(server: Any, worker: Any) -> None:
    """Give a new worker the lowest number that no other has, for its metrics files.

    Gunicorn calls this in the master, which forgets a worker when it has ended.
    """
    taken = {other.metrics_number for other in server.WORKERS.values()}
    worker.metrics_number = next(number for number in count(1) if number not in taken)


def begin_worker(_server: object, worker: Any) -> None:
    """Let SIGTERM end a new worker until it has a handler of its own, and open its metrics files.

    Gunicorn calls this in the worker, which has inherited the master's handler: that only queues
    the signal.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker_metrics.use_files(worker.metrics_number)


def check_worker(worker: Any) -> None:
    """Run `check_access` for a worker, whose application may have a configuration of its own."""
    check_access(worker.wsgi.extensions["zeus_config"], worker.sockets)


def make_ready(config: Config) -> None:
    """Prepare the database and the workers' metrics; once, in the process that starts the workers.

    Raise `Unusable` if the database cannot be created, opened, migrated or written.
    """
    worker_metrics.set_up()
    from zeus_service import create_app
    from zeus_service.db.migrate import prepare

    prepare(create_app(config))
