"""When recurrences begin: at once, at an interval, or by a cron expression."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo

from croniter import croniter

Schedule = Callable[[float | None, float], float]
"""Given when the last recurrence began (None: none yet) and when the driver started, in Unix
seconds, return when the next recurrence is due. Times that passed while none could begin are made
up for once, not one by one."""


def at_once(_last_s: float | None, started_s: float) -> float:
    """Begin as soon as another recurrence may run."""
    return started_s


def every(interval_s: float) -> Schedule:
    """Begin the first at once, and each next one an interval after the last one began."""
    return lambda last_s, started_s: started_s if last_s is None else last_s + interval_s


def cron(expression: str) -> Schedule:
    """Begin at the local times of a cron expression; a ValueError if it is none, or names no time.

    Of a time that comes twice, as summer time ends, only the first counts, unless it is to begin in
    every hour.
    """
    hourly = croniter.expand(expression)[0][1] == ["*"]
    croniter(expression).get_next()  # an error for February 30

    def next_s(last_s: float | None, started_s: float) -> float:
        after = datetime.fromtimestamp(started_s if last_s is None else last_s, tz=_LocalTime())
        times = croniter(expression, after)
        due: datetime = times.get_next(datetime)
        while due.fold and not hourly:
            due = times.get_next(datetime)
        return due.timestamp()

    return next_s


class _LocalTime(tzinfo):
    """Local time by the C library's rules, which a naive `datetime` has at any date.

    `dateutil.tz.tzlocal()` is wrong where winter, not summer, has the flag of daylight saving time,
    as in Dublin; `dateutil.tz.gettz()` is wrong for `TZ=UTC+3`, and for an empty `TZ`.
    """

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        """Return the offset at a local time, with regard to its `fold`."""
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def fromutc(self, dt: datetime) -> datetime:
        """Convert from UTC."""
        return datetime.fromtimestamp(dt.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)

    def dst(self, _: datetime | None) -> None:
        """Return None: not needed."""

    def tzname(self, _: datetime | None) -> None:
        """Return None: not needed."""
