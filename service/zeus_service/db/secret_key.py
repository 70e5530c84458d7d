"""The key that signs what browsers keep: made once, and stored for all replicas."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, insert, select

from zeus_service.db.tables import SECRETS
from zeus_service.db.transactions import use_case

_NAME = "session_key"


class _Hidden(str):
    """A text that SQLAlchemy does not log with a statement's values (`ZEUS_BSO_ECHO_SQL`)."""

    def __repr__(self) -> str:
        return "'...'"


def read_or_make() -> str:
    """Read the key; make it if there is none."""
    return _read() or _make()


@use_case(read_only=True)
def _read(connection: Connection) -> str | None:
    return connection.execute(select(SECRETS.c.value).where(SECRETS.c.name == _NAME)).scalar()


@use_case()
def _make(connection: Connection) -> str:
    """Called again if another replica has stored a key meanwhile: then that one counts."""
    found = connection.execute(select(SECRETS.c.value).where(SECRETS.c.name == _NAME)).scalar()
    if found is not None:
        return str(found)
    made = secrets.token_hex(32)
    connection.execute(insert(SECRETS).values(name=_NAME, value=_Hidden(made)))
    return made
