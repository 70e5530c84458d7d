"""Instants are stored by the database's clock, whatever the clocks of the replicas say."""

import time
from typing import Any

import pytest
from flask import Flask
from service.db.test_power_profiles import profile
from service.jobs import let_leases_expire, register, report
from sqlalchemy import select
from zeus_service import maintenance, optimizer
from zeus_service.db import power_profiles, queries
from zeus_service.db.session import transaction, unix_now
from zeus_service.db.tables import db


def at(skew_s: float, monkeypatch: pytest.MonkeyPatch, time_now: Any = time.time) -> None:
    """Set this replica's clock wrong."""
    monkeypatch.setattr(time, "time", lambda: time_now() + skew_s)


def lease_left_s(trial_number: int) -> float:
    with transaction(read_only=True) as session:
        now = float(session.execute(select(unix_now())).scalar_one())
    return queries.get_trial("job", trial_number)[0].lease_expires_at - now


def test_a_replica_whose_clock_is_wrong_loses_no_trial_and_keeps_none(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 1000.0
    register(lease_s=lease_s)
    for number, skew_s in enumerate((-1e5, 1e5, 0.0), 1):
        at(skew_s, monkeypatch)
        optimizer.start_trial("job", None)
        assert 0 < lease_left_s(number) <= lease_s
        optimizer.report("job", number, report(1))
        assert 0 < lease_left_s(number) <= lease_s
        optimizer.heartbeat("job", number)
        assert 0 < lease_left_s(number) <= lease_s
    assert [trial.outcome for trial in optimizer.list_trials("job")] == [None] * 3


def test_no_instant_is_stored_by_a_replicas_clock(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is old is old by the database's."""
    real_time = time.time
    for skew_s in (-1e6, 1e6):
        at(skew_s, monkeypatch, real_time)
        register(beta_knob=None)
        for _ in range(3):
            optimizer.start_trial("job", None)
        optimizer.report("job", 1, report(1, metric=1.0))
        optimizer.end_trial("job", 2, "errored")
        let_leases_expire(db.engine.url.render_as_string(hide_password=False))
        power_profiles.put("job", profile())
        optimizer.start_trial("job", None)  # the third one is lost
        assert maintenance.prune(older_than_s=3600.0) == maintenance.Dropped()
        found = instants()
        assert len(found) == 11
        assert all(abs(instant - real_time()) < 3600 for instant in found)
        maintenance.delete_job("job", force=True)


def test_what_is_shown_is_as_old_as_the_databases_clock_says(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases that are over, and the weeks of what was saved."""
    real_time, client = time.time, app.test_client()
    register(beta_knob=None, lease_s=1000.0)
    optimizer.start_trial("job", None)
    optimizer.report("job", 1, report(1, metric=1.0))
    optimizer.start_trial("job", None)
    for skew_s in (-1e7, 1e7):
        at(skew_s, monkeypatch, real_time)
        for address in ("/", "/job/job", "/job/job/trial/2"):
            assert "probably crashed" not in client.get(address).text
        assert client.get("/api/v1/savings?weeks=1").get_json()["weeks"]
        assert client.get("/api/v1/savings?weeks=1").get_json()["weeks"]
    let_leases_expire(db.engine.url.render_as_string(hide_password=False))
    assert "probably crashed" in client.get("/job/job").text


def instants() -> list[float]:
    with transaction(read_only=True) as session:
        return [
            value
            for table in db.metadata.sorted_tables
            for row in session.execute(select(table)).mappings()
            for name, value in row.items()
            if name.endswith("_at") and name != "lease_expires_at" and value is not None
        ]
