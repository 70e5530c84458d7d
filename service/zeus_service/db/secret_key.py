"""The key that signs what browsers keep: made once, and stored for all replicas."""

from __future__ import annotations

import secrets

from sqlalchemy import select
from sqlalchemy.orm import Session

from zeus_service.db.session import use_case
from zeus_service.db.tables import Secret

_NAME = "session_key"


class _Hidden(str):
    """A text that SQLAlchemy does not log with a statement's values (`ZEUS_BSO_ECHO_SQL`)."""

    def __repr__(self) -> str:
        return "'...'"


def read_or_make() -> str:
    """Read the key; make it if there is none."""
    return _read() or _make()


@use_case(read_only=True)
def _read(session: Session) -> str | None:
    return session.scalar(select(Secret.value).where(Secret.name == _NAME))


@use_case()
def _make(session: Session) -> str:
    """Called again if another replica has stored a key meanwhile: then that one counts."""
    found = session.scalar(select(Secret.value).where(Secret.name == _NAME))
    if found is not None:
        return str(found)
    made = secrets.token_hex(32)
    session.add(Secret(name=_NAME, value=_Hidden(made)))
    return made
