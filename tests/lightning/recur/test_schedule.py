"""When recurrences begin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from zeus_lightning.recur.schedule import at_once, cron, every

NOON_S = datetime(2026, 3, 1, 12).timestamp()


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
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


@pytest.mark.usefixtures("berlin")
def test_local_times_stay_what_they_are_when_summer_time_ends() -> None:
    next_s, at_s = cron("0 9 * * *"), datetime(2026, 10, 24, 12).timestamp()
    for day in (25, 26):
        at_s = next_s(at_s, 0.0)
        assert datetime.fromtimestamp(at_s) == datetime(2026, 10, day, 9)


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("expression", "hours"), [("30 2 * * *", [0, 25]), ("30 * * * *", [0, 1]), ("@daily", [22.5])]
)
def test_a_time_that_comes_twice_counts_once_unless_it_is_in_every_hour(
    expression: str, hours: list[float]
) -> None:
    next_s, first_s = cron(expression), datetime(2026, 10, 25, 2, 30).timestamp()
    at_s, found = first_s - 1, []
    for _ in hours:
        at_s = next_s(at_s, 0.0)
        found.append((at_s - first_s) / 3600)
    assert found == hours


@pytest.mark.parametrize(
    ("expression", "message"),
    [("every night", "columns"), ("0 0 30 2 *", "failed to find next date")],
)
def test_an_expression_that_names_no_time_is_refused(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cron(expression)
