"""How the body of a request is read: at most 64 KiB of standard JSON."""

from typing import Any

from flask import request
from flask.json.provider import DefaultJSONProvider
from gunicorn.http.errors import ParseException
from pydantic_core import from_json
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

MAX_BODY_BYTES = 64 * 1024
"""Flask refuses a longer `Content-Length` by itself."""


class StrictJSON(DefaultJSONProvider):
    """Standard JSON: no NaN, no infinity, and no nesting that exhausts the stack."""

    def loads(self, s: str | bytes, **_kwargs: Any) -> Any:
        """Parse a request's body; raise `BadRequest` if it is not a JSON object."""
        try:
            value = from_json(s, allow_inf_nan=False)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequest("the body must be a JSON object")
        return value


def check_body() -> None:
    """Refuse a chunked body that is malformed or too long: Flask would truncate it."""
    if request.content_length is not None:
        return
    request.max_content_length = MAX_BODY_BYTES + 1
    try:
        too_large = len(request.get_data()) > MAX_BODY_BYTES
    except (OSError, ParseException) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    if too_large:
        raise RequestEntityTooLarge
