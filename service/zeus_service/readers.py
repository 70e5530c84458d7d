"""Read jobs for the command line: from the database, or from a service over HTTP.

Both give what the API gives. A path has `{}` in place of the job's id.
"""

import json
import re
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from flask import Flask
from pydantic import TypeAdapter, ValidationError

from zeus_service.errors import Unusable

T = TypeVar("T")

_TIMEOUT_S = 30


class Reader:
    """Reads messages of the API.

    Args:
        source: What is read, for messages.
        send: Returns the body of the answer to a GET of a path, for the id of a job.
    """

    def __init__(self, source: str, send: Callable[[str, str | None], bytes]) -> None:
        self._source = source
        self._send = send

    def read(self, kind: type[T], path: str, job_id: str | None = None, **query: object) -> T:
        """Read a message of a kind; raise `Unusable` if the answer is another."""
        answer = self._send(f"{path}?{urlencode(query)}", job_id)
        try:
            return TypeAdapter(kind).validate_json(answer)
        except ValidationError as error:
            raise Unusable(f"{self._source} is not a zeus-service of this version") from error


def from_database(app: Flask) -> Reader:
    """Call the application's views in this process, which raise the errors of the use cases."""

    def send(path: str, job_id: str | None) -> bytes:
        with app.test_request_context(path.format("job")) as context:
            if job_id is not None:  # no path has an id with a slash
                context.request.view_args = {**(context.request.view_args or {}), "job_id": job_id}
            return app.make_response(app.dispatch_request()).get_data()

    return Reader("the database", send)


def from_service(url: str, token: str | None = None) -> Reader:
    """Ask a service, with a bearer token if it wants one.

    Raises:
        Unusable: This is not a service URL. The reader raises it if the service cannot be reached,
            or refuses.
    """
    if "@" in url:  # what is before it may be secret
        raise Unusable(
            "the address of the service has a user or a password; use http://HOST:PORT, and "
            "set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN"
        )
    if not re.fullmatch(r"https?://[^/?#]+/?", url):
        raise Unusable(f"{url!r} is not a service URL; use http://HOST:PORT")
    service = url.rstrip("/")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    opener = build_opener(_NoRedirects)

    def send(path: str, job_id: str | None) -> bytes:
        request = Request(service + path.format(quote(job_id or "", safe="")), headers=headers)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            raise _refused(service, error) from error
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unusable(f"no answer from {service}: {reason}") from error

    return Reader(service, send)


def _refused(service: str, error: HTTPError) -> Unusable:
    try:
        detail = json.loads(error.read())["detail"]
    except (ValueError, KeyError, TypeError):
        return Unusable(f"{service} is not a zeus-service: it answered {error.code}")
    if error.code in (401, 403):
        detail += "; set ZEUS_BSO_READ_TOKEN or ZEUS_BSO_TOKEN to it"
    return Unusable(f"{service}: {detail}")


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error: it could take the token to another host."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Called by the opener."""
