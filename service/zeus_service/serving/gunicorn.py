"""Gunicorn's configuration: `gunicorn -c python:zeus_service.serving.gunicorn`.

`zeus-service serve` starts gunicorn with it. The master makes the application: it reads the
configuration and prepares the database. Workers inherit the application, so one that replaces
another has the same configuration, whatever the environment says by then.

Import this module only to serve: it replaces blocking calls by gevent's, so that a worker serves
others while it waits. It comes before `zeus_service.app`, since psycopg chooses at import how to
wait, and prometheus-client where to count.
"""

import atexit
import ipaddress
import os
import resource
import shutil
import signal
import socket
import tempfile
from typing import Any

from gevent import monkey

from zeus_service.config import Config, load_config
from zeus_service.errors import Unusable
from zeus_service.serving.logging import LOGGERS
from zeus_service.version import __version__

CONNECTIONS = 5000
"""Client connections per worker, idle ones included, at about 20 kB of memory each. A worker that
has this many accepts no other, and health checks wait."""

OTHER_FILES = 200
"""Other files that a worker opens: listeners, connections to the database, metrics, logs."""


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


def share_counters() -> None:
    """Create the folder of prometheus-client's files; it must exist before that is imported.

    Workers that have ended leave their files there, since counters must not go backwards. It is in
    memory: the files are mapped, and a write on a full disk would end the process (SIGBUS).
    """
    memory = os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ
    folder = tempfile.mkdtemp(prefix="zeus-service-counters-", dir="/dev/shm" if memory else None)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    master = os.getpid()

    def remove() -> None:
        if os.getpid() == master:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


monkey.patch_all()
_config = load_config()
share_counters()

wsgi_app = "zeus_service.app:make_ready_app()"
preload_app = True
worker_class = "gevent"
worker_connections = allow_connections()
# How long a connection may be idle, and a request's head may take to arrive. A worker that ends
# waits for idle connections, so a restart takes two or three seconds more than this.
keepalive = 10
graceful_timeout = 30
timeout = 60
# Headers like SCRIPT_NAME, PATH_INFO and X-Forwarded-Proto change nothing.
forwarded_allow_ips = ""
forwarder_headers = ""
control_socket_disable = True  # it would be created in the home directory
loglevel = _config.log_level.lower()
logger_class = LOGGERS[_config.log_format]


def on_starting(server: Any) -> None:
    """Refuse a setting with which workers would listen before `when_ready` has checked access."""
    if server.cfg.reuse_port:
        raise Unusable("reuse_port is not supported: remove it")


def when_ready(server: Any) -> None:
    """Check who may connect, once the server listens and before it has workers."""
    config = server.app.wsgi().extensions["zeus_config"]
    check_access(config, [listener.sock for listener in server.LISTENERS])
    server.log.info("zeus-service %s, data in %s", __version__, config.shown_database)


def post_fork(_server: object, _worker: object) -> None:
    """Let SIGTERM end a new worker until it has a handler of its own.

    It has inherited the master's handler, which only queues the signal.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_access(config: Config, listeners: list[socket.socket]) -> None:
    """Check that the service is not open to other machines without a token.

    Raises:
        Unusable: It is.
    """
    if config.has_tokens or config.insecure:
        return
    for listener in listeners:
        if listener.family == socket.AF_UNIX:
            continue
        host = listener.getsockname()[0]
        if not ipaddress.ip_address(host).is_loopback:
            raise Unusable(
                f"without a token, anyone who can reach {host} could change or delete jobs; set "
                "ZEUS_BSO_TOKEN, or ZEUS_BSO_INSECURE=1 on a private network"
            )
