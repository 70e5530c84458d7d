"""The log's format: one record a line, as text or as JSON; requests cannot forge records.

A record's `fields` (`logger.info(..., extra={"fields": {...}})`) and the id of its request come
after its message, or are members of the JSON object.
"""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any

from flask import g, has_request_context
from gunicorn.glogging import Logger
from gunicorn.http.errors import NoMoreData


class TextFormatter(logging.Formatter):
    """Lines for people. Those that do not begin a record are indented."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s [%(process)d] [%(levelname)s] %(message)s", "[%Y-%m-%d %H:%M:%S %z]"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Add the request's fields and id."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        return f"{super().formatMessage(record)} {fields}".rstrip()

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line, and indented ones for a traceback."""
        return "\n    ".join(super().format(record).splitlines())


class JSONFormatter(logging.Formatter):
    """A JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = dict(getattr(record, "fields", {}))
    if has_request_context() and "request_id" in g:
        fields["request_id"] = g.request_id
    return fields


class TextLogger(Logger):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's log, and that of the whole process."""

    formatter: logging.Formatter = TextFormatter()

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(self.formatter)
        logging.root.handlers[:] = self.error_log.handlers
        logging.root.setLevel(self.loglevel)
        logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs two lines for each /readyz

    def warning(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a warning without what gunicorn quotes of a malformed request: maybe a token."""
        if msg.startswith("Invalid request from "):
            msg = re.split("b?['\"]", msg, maxsplit=1)[0]
        super().warning(msg, *args, **kwargs)

    def debug(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log a detail without the data of an incomplete request, for the same reason."""
        args = tuple("" if isinstance(arg, NoMoreData) else arg for arg in args)
        super().debug(msg, *args, **kwargs)


class JSONLogger(TextLogger):
    """The same log as JSON."""

    formatter = JSONFormatter()


LOGGERS = {"text": TextLogger, "json": JSONLogger}
