"""The service under gunicorn, started by `zeus-service serve` or by `service/gunicorn.conf.py`.

The master reads the configuration, checks that the service may listen, prepares the database, and
creates the folder through which workers share their counters. Workers inherit all of that, so one
that replaces another has the same configuration, whatever the environment says by then.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import ipaddress
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from flask import Flask
from gevent import monkey
from gunicorn.app.base import BaseApplication

from zeus_service.config import Config, load_config
from zeus_service.errors import Unusable
from zeus_service.serving.logging import LOGGERS
from zeus_service.version import __version__

CONNECTIONS = 5000
"""Client connections per worker, idle ones included, at about 20 kB of memory each. A worker that
has this many accepts no other, and health checks wait."""

OTHER_FILES = 200
"""Files that a worker opens beside: listeners, connections to the database, metrics, logs."""

KEEPALIVE_S = 10
"""How long a connection may be idle, and a request's head may take to arrive. A worker that ends
waits for idle connections, so a restart takes two or three seconds more than this."""

METRICS = "zeus-service-metrics-"
"""What the names of folders of counters begin with."""

_server_config: Config | None = None


def patch() -> None:
    """Replace blocking calls by gevent's, so that a worker serves others while it waits.

    Only the entry points of serving call this, first of all: psycopg chooses at import how to wait,
    and would block the whole worker during each query.
    """
    if "psycopg" in sys.modules and not monkey.is_module_patched("select"):
        raise RuntimeError("psycopg was imported before gevent's patch")
    monkey.patch_all()


def server_config() -> Config:
    """The server's configuration, which the first call reads; raise `Unusable` if it is invalid."""
    global _server_config
    if _server_config is None:
        _server_config = load_config()
    return _server_config


def settings(config: Config) -> dict[str, Any]:
    """Gunicorn's settings, for both ways of starting it."""

    def when_ready(server: Any) -> None:  # it listens, and has no workers yet
        try:
            check_access(config, [listener.sock for listener in server.LISTENERS])
        except Unusable as error:
            raise SystemExit(f"Error: {error}") from error
        server.log.info("zeus-service %s, data in %s", __version__, config.shown_database)

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
        "on_reload": reload,
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
        for name, value in {**settings(server_config()), **self.more}.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in each worker."""
        from zeus_service import create_app

        return create_app(server_config())


def reload(arbiter: Any) -> None:
    """Read the configuration again, in the master on SIGHUP, before it replaces the workers.

    One that the service could not have started with is logged and changes nothing.
    """
    global _server_config
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
    _server_config = read
    # Gunicorn has read its settings from the configuration before, such as the log's level.
    arbiter.app.reload()
    arbiter.setup(arbiter.app)


def begin_worker(_server: object, _worker: object) -> None:
    """Let SIGTERM end a new worker until it has a handler of its own.

    Gunicorn calls this in the worker, which has inherited the master's handler: that only queues
    the signal.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def check_worker(worker: Any) -> None:
    """Run `check_access` for a worker, whose application may have a configuration of its own."""
    check_access(worker.wsgi.extensions["zeus_config"], worker.sockets)


def check_bind(bind: str, config: Config) -> None:
    """Check that the service can and may listen on `HOST:PORT`: gunicorn retries for 5 seconds.

    Raises:
        Unusable: It cannot, or may not.
    """
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise Unusable(f"{bind!r} is not HOST:PORT, such as 127.0.0.1:8765")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise Unusable(
                f"cannot listen on {bind}: {error.strerror}; choose another with --bind"
            ) from error
        check_access(config, [probe])


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
                f"anyone who reaches {host} could write and delete jobs: set ZEUS_BSO_TOKEN to a "
                "secret that clients must know, or listen on 127.0.0.1, or set ZEUS_BSO_INSECURE=1 "
                "if the network lets in nobody else"
            )


def make_ready(config: Config) -> None:
    """Prepare the workers' counters and the database; once, in the process that starts workers.

    Raises:
        Unusable: The database cannot be created, opened or migrated.
    """
    share_counters()
    from zeus_service import create_app
    from zeus_service.db.migrate import prepare

    prepare(create_app(config))


def share_counters() -> None:
    """Create the folder of prometheus-client's files, and remove it at exit.

    It must exist before prometheus-client is imported. Workers that have ended leave their files
    there, since counters must not go backwards. It is in memory: the files are mapped, and a write
    on a full disk would end the process (SIGBUS). It stays locked until this process and all its
    workers have ended: a server that was killed leaves its folder, and the next one deletes it.
    """
    memory = os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ
    parent = Path("/dev/shm" if memory else tempfile.gettempdir())
    for left in parent.glob(f"{METRICS}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or just deleted
            descriptor = _lock(left)
            shutil.rmtree(left)
            os.close(descriptor)
    is_mine = False
    while not is_mine:
        folder = Path(tempfile.mkdtemp(prefix=METRICS, dir=parent))
        with contextlib.suppress(OSError):  # another server has just taken it for a left one
            is_mine = os.path.samestat(os.fstat(_lock(folder)), folder.stat())
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a worker, which inherits this
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def _lock(folder: Path) -> int:
    """Lock a folder until the descriptor is closed, here and in all children; else `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
