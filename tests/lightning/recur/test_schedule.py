"""When recurrences begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from zeus_lightning.recur.schedule import at_once, cron, every

NOON_S = datetime(2026, 3, 1, 12).timestamp()


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    with monkeypatch.context() as patch:

        def change(zone: str) -> None:
            patch.setenv("TZ", zone)
            time.tzset()

        yield change
    time.tzset()


def test_without_a_schedule_recurrences_begin_at_once() -> None:
    assert at_once(None, NOON_S) == at_once(NOON_S + 9, NOON_S) == NOON_S


def test_an_interval_counts_from_start_to_start_and_the_first_begins_at_once() -> None:
    assert every(60)(None, NOON_S) == NOON_S
    assert every(60)(NOON_S + 5, NOON_S) == NOON_S + 65


def test_a_cron_expression_names_local_times_and_missed_ones_are_not_made_up_for() -> None:
    nightly = cron("30 2 * * *")
    assert nightly(None, NOON_S) == NOON_S + 14.5 * 3600
    two_days_later_s = NOON_S + 2 * 86400
    assert nightly(two_days_later_s, NOON_S) == two_days_later_s + 14.5 * 3600


@pytest.mark.parametrize(
    ("zone", "month", "day"),  # as summer time ends, but for winter, summer and Ramadan
    [
        ("Europe/Berlin", 10, 25),
        (":Europe/Berlin", 10, 25),
        ("America/New_York", 11, 1),
        ("EST5EDT,M3.2.0,M11.1.0", 11, 1),
        ("Europe/Dublin", 10, 25),  # whose standard time is that of summer
        ("Europe/Dublin", 1, 10),
        ("Europe/Dublin", 7, 10),
        ("Africa/Casablanca", 3, 10),
        ("UTC+3", 1, 10),  # three hours behind: `dateutil.tz.gettz` has it ahead
        ("", 1, 10),
    ],
)
def test_local_times_are_those_of_the_zone_all_year(
    in_zone: Callable[[str], None], zone: str, month: int, day: int
) -> None:
    in_zone(zone)
    next_s, at_s = cron("0 9 * * *"), datetime(2026, month, day).timestamp()
    for each in (day, day + 1):
        at_s = next_s(at_s, 0.0)
        assert datetime.fromtimestamp(at_s) == datetime(2026, month, each, 9)


@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("Europe/Berlin", datetime(2026, 10, 25, 2, 30)),
        ("America/New_York", datetime(2026, 11, 1, 1, 30)),
        ("Europe/Dublin", datetime(2026, 10, 25, 1, 30)),
    ],
)
@pytest.mark.parametrize(("hour", "hours"), [("{}", [0, 25]), ("*", [0, 1])])
def test_a_time_that_comes_twice_counts_once_unless_it_is_in_every_hour(
    in_zone: Callable[[str], None], zone: str, first: datetime, hour: str, hours: list[float]
) -> None:
    in_zone(zone)
    next_s, first_s = cron(f"30 {hour.format(first.hour)} * * *"), first.timestamp()
    at_s, found = first_s - 1, []
    for _ in hours:
        at_s = next_s(at_s, 0.0)
        found.append((at_s - first_s) / 3600)
    assert found == hours


def test_a_time_that_is_left_out_as_summer_time_begins_is_right_after_the_gap(
    in_zone: Callable[[str], None],
) -> None:
    in_zone("Europe/Dublin")
    due_s = cron("30 1 * * *")(datetime(2026, 3, 29).timestamp(), 0.0)
    assert datetime.fromtimestamp(due_s) == datetime(2026, 3, 29, 2)


def test_a_day_begins_once_also_where_its_first_hour_comes_twice(
    in_zone: Callable[[str], None],
) -> None:
    in_zone("America/Havana")
    next_s, at_s = cron("@daily"), datetime(2026, 10, 31, 12).timestamp()
    for day in (1, 2):
        at_s = next_s(at_s, 0.0)
        assert datetime.fromtimestamp(at_s) == datetime(2026, 11, day)


@pytest.mark.parametrize(
    ("expression", "message"),
    [("every night", "columns"), ("0 0 30 2 *", "failed to find next date")],
)
def test_an_expression_that_names_no_time_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cron(expression)
