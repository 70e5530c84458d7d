"""A server between a run and the real service, that does to requests what a test asks for."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests
from running import Running
from waiting import LIMIT_S

Body = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a run asks for: `kind` is `job`, `start`, `report`, `heartbeat`, `end` or `list`."""

    kind: str
    body: Body


Instead = Callable[[Request], tuple[int, Body] | None]
"""Given a request, the status and body to answer with; None: ask the service."""


def _kind(method: str, path: str) -> str:
    if method == "PATCH":
        return "end"
    if method == "GET":
        return "list"
    last = path.partition("?")[0].rpartition("/")[2]
    return {"jobs": "job", "trials": "start", "reports": "report"}.get(last, last)


class QuietHTTPServer(ThreadingHTTPServer):
    """Prints nothing of a connection that has ended.

    The thread that serves it may outlive its test, and would print into the output of another one.
    """

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Proxy(Running):
    """Passes requests on to the service at `url`.

    Args:
        url: The service.
        instead: Given a request, the status and body to answer with; None: ask the service.
        after: Given a request and the service's answer, the answer to give.
    """

    def __init__(
        self,
        url: str,
        *,
        instead: Instead = lambda request: None,
        after: Callable[[Request, Body], Body] = lambda request, body: body,
    ) -> None:
        seen: list[Request] = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                request = Request(_kind(self.command, self.path), json.loads(body or b"{}"))
                seen.append(request)
                given = instead(request)
                if given is None:
                    response = requests.request(
                        self.command,
                        url + self.path,
                        data=body,
                        headers=self.headers,
                        timeout=LIMIT_S,
                    )
                    given = response.status_code, response.json()
                status, answer = given
                text = json.dumps(after(request, answer)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self.seen = seen
        self._server = QuietHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def count(self, kind: str) -> int:
        """How many requests of a kind have come."""
        return sum(request.kind == kind for request in self.seen)

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def after_a_while(request: Request) -> None:
    time.sleep(0.5)


def never(request: Request) -> tuple[int, Body]:
    time.sleep(LIMIT_S)
    return 503, {"code": "unavailable"}


def falls_silent_after_one_report() -> Instead:
    """Answer nothing any more, once a report was answered."""
    silent = threading.Event()

    def instead(request: Request) -> tuple[int, Body] | None:
        if silent.is_set():
            return never(request)
        if request.kind == "report":
            silent.set()
        return None

    return instead


def dies_after_one_report() -> Instead:
    """Answer with 503 from the second report on."""
    reports = itertools.count(1)
    dead = threading.Event()

    def instead(request: Request) -> tuple[int, Body] | None:
        if request.kind == "report" and next(reports) == 2:
            dead.set()
        return (503, {"code": "unavailable"}) if dead.is_set() else None

    return instead


def refuses(kind: str, status: int, code: str) -> Instead:
    """Answer requests of a kind with an error."""

    def instead(request: Request) -> tuple[int, Body] | None:
        return (status, {"code": code, "detail": "no"}) if request.kind == kind else None

    return instead
