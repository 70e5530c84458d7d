"""The size limit of request bodies."""

from flask import request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

MAX_BODY_BYTES = 64 * 1024
"""Flask refuses a longer `Content-Length` by itself."""


def limit_chunked_body() -> None:
    """Refuse a chunked body that is malformed or too long: Flask would truncate it at the limit."""
    if request.content_length is not None:
        return
    request.max_content_length = MAX_BODY_BYTES + 1
    try:
        too_large = len(request.get_data()) > MAX_BODY_BYTES
    except (OSError, ParseException) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    if too_large:
        raise RequestEntityTooLarge
