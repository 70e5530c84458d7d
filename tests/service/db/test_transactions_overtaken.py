"""A use case that another one overtakes in its middle decides on what is true then."""

from __future__ import annotations

import pytest
from flask import Flask
from service.conftest import application
from service.db.races import (
    SERVERS,
    errored,
    just_before,
    just_before_the_trial_is_written,
    on_servers,
    register,
    report,
)
from sqlalchemy import select
from zeus_service import maintenance, optimizer
from zeus_service.db.tables import EVENTS, REPORTS
from zeus_service.db.transactions import (
    transaction,
)
from zeus_service.errors import ReportConflict, TrialFinished


@on_servers
def test_a_heartbeat_whose_trial_ends_meanwhile_gets_the_outcome(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with (
        just_before_the_trial_is_written(errored),
        pytest.raises(TrialFinished, match="has ended: errored"),
    ):
        optimizer.heartbeat("job", 1)


@on_servers
def test_a_report_whose_trial_ends_meanwhile_takes_the_end_back(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with just_before_the_trial_is_written(errored):
        assert report(1).decision == "continue"
    assert optimizer.get_trial("job", 1).outcome is None
    with transaction(read_only=True) as connection:
        kinds = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence)).scalars()
        assert list(kinds) == ["started", "ended", "revived"]
    assert maintenance.rebuild("job")


@on_servers
def test_a_report_that_the_next_one_overtakes_is_refused(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with (
        just_before_the_trial_is_written(lambda: report(2)),
        pytest.raises(ReportConflict, match="report 1 comes after report 2"),
    ):
        report(1)
    assert optimizer.get_trial("job", 1).epoch == 2


@on_servers
def test_the_same_report_twice_at_once_is_taken_once(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    answers = []
    with just_before_the_trial_is_written(lambda: answers.append(report(1))):
        answers.append(report(1))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("database_url", SERVERS[:1], indirect=True)  # MySQL locks the trial too
def test_a_last_report_that_another_one_overtakes_is_taken_after_it(app: Flask) -> None:
    register("job")
    optimizer.start_trial("job", None)
    with just_before_the_trial_is_written(lambda: report(1)):
        assert report(2, metric=1.0).outcome == "converged"
    with transaction(read_only=True) as connection:
        reports = connection.execute(select(REPORTS.c.sequence).order_by(REPORTS.c.sequence))
        assert list(reports.scalars()) == [1, 2]
        events = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence))
        assert list(events.scalars()) == ["started", "ended"]
    assert maintenance.rebuild("job")


@on_servers
def test_a_report_that_finds_its_trial_taken_up_again_meanwhile_is_taken(
    app: Flask, database_url: str
) -> None:
    def report_to_another_server() -> None:
        with application(database_url):
            report(1)

    register("job")
    optimizer.start_trial("job", None)
    errored()
    with just_before(" UPDATE", report_to_another_server):  # FOR UPDATE, FOR NO KEY UPDATE
        assert report(2).decision == "continue"
    assert optimizer.get_trial("job", 1).epoch == 2
    with transaction(read_only=True) as connection:
        events = connection.execute(select(EVENTS.c.kind).order_by(EVENTS.c.sequence))
        assert list(events.scalars()) == ["started", "ended", "revived"]
    assert maintenance.rebuild("job")
