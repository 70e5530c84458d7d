"""The database's clock, by which every instant is stored, and leases are counted.

The clocks of the replicas do not matter.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


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


class unix_day(FunctionElement[int]):  # noqa: N801 - SQLAlchemy's style for functions
    """Days since 1970 in UTC, when the statement is executed."""

    type = sa.Integer()
    inherit_cache = True


@compiles(unix_day)
def _day_sqlite(_element: unix_day, _compiler: Any, **_options: Any) -> str:
    return "CAST(julianday('now') - 2440587.5 AS INTEGER)"


@compiles(unix_day, "postgresql")
def _day_postgresql(_element: unix_day, _compiler: Any, **_options: Any) -> str:
    return "CAST(floor(extract(epoch FROM clock_timestamp()) / 86400) AS integer)"


@compiles(unix_day, "mysql")
@compiles(unix_day, "mariadb")
def _day_mysql(_element: unix_day, _compiler: Any, **_options: Any) -> str:
    return "CAST(floor(unix_timestamp(now(6)) / 86400) AS signed)"
