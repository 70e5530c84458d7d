"""The database's clock, by which every instant is stored, and leases are counted.

What is stored is compared with this clock alone, so the clocks of the replicas do not matter.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

WEEK_S = 7 * 86400
SINCE_MONDAY_S = 3 * 86400
"""Seconds from a Monday to the beginning of 1970, a Thursday."""


class unix_now(FunctionElement[float]):  # noqa: N801 - SQLAlchemy's style for functions
    """Unix seconds, when the statement is executed."""

    type = sa.Double()
    inherit_cache = True


@compiles(unix_now)
def _sqlite(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(unix_now, "postgresql")
def _postgresql(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"


@compiles(unix_now, "mysql")
@compiles(unix_now, "mariadb")
def _mysql(_element: unix_now, _compiler: Any, **_options: Any) -> str:
    return "CAST(unix_timestamp(now(6)) AS double)"  # sessions have UTC


def unix_week(instant: Any) -> sa.ColumnElement[int]:
    """Weeks since the Monday before 1970, in UTC, of an instant in Unix seconds."""
    # Literals, not parameters: PostgreSQL groups by the expression only if it is the same text.
    since_monday_s, week_s = (
        sa.literal_column(str(seconds), sa.BigInteger) for seconds in (SINCE_MONDAY_S, WEEK_S)
    )
    weeks = (sa.cast(instant, sa.BigInteger) + since_monday_s) // week_s
    return sa.cast(weeks, sa.BigInteger)  # MariaDB's is a decimal number
