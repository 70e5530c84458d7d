"""The service under gunicorn, started by `zeus-service serve` or by `service/gunicorn.conf.py`."""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.http.message import Request
from gunicorn.workers.gthread import TConn, ThreadWorker

from zeus_service.config import Config, UnusableConfig, load_config
from zeus_service.logs import LOGGERS
from zeus_service.turns import Turns

THREADS = 8
"""Of a worker."""

REQUEST_TIMEOUT_S = 10
"""A request must have arrived this long after it began to."""


class UnusableAddress(Exception):
    """The address cannot be listened on; the message names it and the remedy."""


class Worker(ThreadWorker):
    """A worker that shares new connections with the others, and whose threads take turns.

    Nor do they wait for ever for the rest of a request: gunicorn waits in the main loop for the
    first byte, but in a thread for the others, and 16 half-sent requests would stop 2 workers.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turns = Turns()
        self._reading: dict[TConn, float] = {}  # deadlines of those that a thread waits for

    def load_wsgi(self) -> None:
        """Called by gunicorn; the configuration may be another than at the start."""
        super().load_wsgi()
        check_access(self.wsgi.extensions["zeus_config"], [each.sock for each in self.sockets])

    def accept(self, listener: Any) -> None:
        """Called by gunicorn in the main loop of each worker, when a connection waits.

        Of those that arrive at once, the first worker to wake up would take all, and a worker's
        threads share one core: the more connections it has, up to ten, the longer it lets others go
        first, up to a millisecond.
        """
        if self.cfg.workers > 1:
            time.sleep(min(self.nr_conns, 10) * 1e-4)
        super().accept(listener)

    def handle(self, conn: TConn) -> Any:
        """Called by gunicorn, in a thread: read a request and answer it."""
        self._reading[conn] = time.monotonic() + REQUEST_TIMEOUT_S
        try:
            return super().handle(conn)
        finally:
            self._reading.pop(conn, None)

    def handle_request(self, req: Request, conn: TConn) -> Any:
        """Called by gunicorn with the head; the body is read when the application asks for it."""
        deadline = self._reading.pop(conn)
        receive = req.unreader.chunk

        def end_if_late() -> None:
            """End the connection with this answer: it may have been shut."""
            if time.monotonic() >= deadline:
                req.force_close()

        def receive_in_time(*args: Any) -> bytes:
            if time.monotonic() >= deadline:
                req.force_close()
                return b""  # as if that was all
            waits = not _readable(conn.sock)
            if waits:
                self._turns.give()
            self._reading[conn] = deadline
            try:
                return receive(*args)  # type: ignore[no-any-return] # gunicorn has no types
            finally:
                del self._reading[conn]
                end_if_late()
                if waits:
                    self._turns.take()

        end_if_late()
        req.unreader.chunk = receive_in_time
        self._turns.take()
        try:
            return super().handle_request(req, conn)
        finally:
            self._turns.give()
            del req.unreader.chunk
            # gunicorn discards what nobody has read: that may take as long again
            self._reading[conn] = time.monotonic() + REQUEST_TIMEOUT_S

    def notify(self) -> None:
        """Called by gunicorn in the main loop, at least once a second."""
        super().notify()
        now = time.monotonic()
        for conn, deadline in self._reading.copy().items():
            if deadline < now:  # the answer, if only an error, can still be sent
                with contextlib.suppress(OSError):
                    conn.sock.shutdown(socket.SHUT_RD)


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def settings(config: Config) -> dict[str, Any]:
    """Gunicorn's settings, for both ways of starting it."""

    def when_ready(server: Any) -> None:
        """Called by gunicorn when it listens, wherever it was told to, and has no workers yet."""
        try:
            check_access(config, [listener.sock for listener in server.LISTENERS])
        except UnusableAddress as error:
            raise SystemExit(f"Error: {error}") from error

    return {
        "worker_class": Worker,
        "threads": THREADS,
        "keepalive": 75,
        "graceful_timeout": 30,
        "timeout": 60,
        "control_socket_disable": True,  # it would be made in the home directory
        "loglevel": config.log_level.lower(),
        "logger_class": LOGGERS[config.log_format],
        "when_ready": when_ready,
        "post_fork": end_if_asked,
        "child_exit": child_exit,
    }


class Server(BaseApplication):
    """gunicorn with this service's settings, for `run()`.

    Each worker makes its own application, so that no database connection crosses a fork. The
    configuration is read here, so that a worker that takes another's place has the same; a hangup
    reads it anew, and one without sense changes nothing.
    """

    def __init__(self, config: Config, **more: Any) -> None:
        self.config = config

        def on_reload(arbiter: Any) -> None:
            """Called by gunicorn on SIGHUP, before it replaces the workers."""
            try:
                read = load_config()
                check_access(read, [listener.sock for listener in arbiter.LISTENERS])
            except (UnusableConfig, UnusableAddress) as error:
                told = "the configuration stays as it was: %s"
                arbiter.log.error(told, error)  # noqa: TRY400 - the message says all
            else:
                self.config = read

        self.settings = {**settings(config), "on_reload": on_reload, **more}
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self.settings.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called by gunicorn in each worker."""
        from zeus_service import create_app

        return create_app(self.config)


def end_if_asked(arbiter: Arbiter, _worker: object) -> None:
    """End a worker that was told to end before it listened to signals; called by gunicorn in it.

    Forked, it has the handler of its parent, which puts signals into a queue that nobody reads
    here: gunicorn would wait for it, then kill it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until gunicorn sets the worker's own
    while not arbiter.SIG_QUEUE.empty():
        if arbiter.SIG_QUEUE.get() == signal.SIGTERM:
            sys.exit(0)


def child_exit(server: Any, worker: Any) -> None:
    """Called by gunicorn when a worker has ended."""
    from prometheus_client.multiprocess import mark_process_dead

    del server
    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call] # has no types


def make_ready(config: Config) -> None:
    """Prepare the database and the workers' metrics; once, in the process that starts the workers.

    Raises:
        UnusableDatabase: It cannot be made, opened, migrated or written.
    """
    _set_up_metrics()
    from zeus_service import create_app
    from zeus_service.database import prepare

    prepare(create_app(config), config)


def _set_up_metrics() -> None:
    """Make the directory through which the workers share their metrics; it ends with the process.

    prometheus-client looks for the variable when it is imported, and only then. It maps the files
    into memory: on a disk that is full, writing there ends the process (SIGBUS).
    """
    memory = os.access("/dev/shm", os.W_OK) and "TMPDIR" not in os.environ
    folder = tempfile.mkdtemp(prefix="zeus-service-metrics-", dir="/dev/shm" if memory else None)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a worker, which inherits this
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def check_bind(bind: str, config: Config) -> None:
    """Check that `HOST:PORT` can be listened on: gunicorn would try again for five seconds.

    Raises:
        UnusableAddress: It is no address, or in use, or not this machine's, or others could come
            in without a token.
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
        check_access(config, [probe])


def check_access(config: Config, listeners: list[socket.socket]) -> None:
    """Check that only this machine can come in without a token.

    Raises:
        UnusableAddress: Others could.
    """
    if config.has_tokens or config.insecure:
        return
    for listener in listeners:
        if not _is_local(listener):
            raise UnusableAddress(
                f"anyone who reaches {listener.getsockname()[0]} could write and delete jobs: set "
                "ZEUS_BSO_TOKEN to a secret that clients must know, or listen on 127.0.0.1, or set "
                "ZEUS_BSO_INSECURE=1 if the network lets in nobody else"
            )


def _is_local(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
