"""What is refused of request bodies, whatever their content: size, encoding, repeated keys."""

import json
from typing import Any

from flask import request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

MAX_BODY_BYTES = 64 * 1024
"""Flask refuses a longer `Content-Length` by itself."""


def check_body() -> None:
    """Refuse a body that is encoded, malformed or too long: Flask would truncate a chunked one."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise BadRequest(f"the body has the Content-Encoding {encoding}; send it as it is")
    if request.content_length is not None:
        return
    request.max_content_length = MAX_BODY_BYTES + 1
    try:
        too_large = len(request.get_data()) > MAX_BODY_BYTES
    except (OSError, ParseException) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    if too_large:
        raise RequestEntityTooLarge


def check_keys(body: str | bytes) -> None:
    """Refuse JSON in which an object has the same key twice: parsers differ in which one counts.

    Raises:
        BadRequest: A key is repeated.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = sorted({name for name in names if names.count(name) > 1})
            raise BadRequest(f"the body repeats a key: {', '.join(map(repr, repeated))}")
        return found

    json.loads(body, object_pairs_hook=object_of)
