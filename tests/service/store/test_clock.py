"""Leases are counted by the database's clock, whatever the clocks of the replicas say."""

import time
from typing import Any

import pytest
from flask import Flask
from service.jobs import spec_json
from sqlalchemy import select
from zeus_service import optimizer
from zeus_service.messages import Report
from zeus_service.spec import JobSpec
from zeus_service.store.clock import unix_now
from zeus_service.store.transactions import transaction


def at(skew_s: float, monkeypatch: pytest.MonkeyPatch, time_now: Any = time.time) -> None:
    """Set this replica's clock wrong."""
    monkeypatch.setattr(time, "time", lambda: time_now() + skew_s)


def lease_left_s(trial_number: int) -> float:
    with transaction(read_only=True) as connection:
        now = float(connection.execute(select(unix_now())).scalar_one())
    return optimizer.get_trial("job", trial_number).lease_expires_at - now


def test_a_replica_whose_clock_is_wrong_loses_no_trial_and_keeps_none(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 1000.0
    optimizer.register_job(JobSpec.model_validate(spec_json(lease_s=lease_s)))
    figures = {"epoch": 1, "time_s": 1.0, "energy_j": 1.0, "metric": 0.1}
    for number, skew_s in enumerate((-1e5, 1e5, 0.0), 1):
        at(skew_s, monkeypatch)
        optimizer.start_trial("job", None)
        assert 0 < lease_left_s(number) <= lease_s
        optimizer.report("job", number, Report(sequence=1, **figures))
        assert 0 < lease_left_s(number) <= lease_s
        optimizer.heartbeat("job", number)
        assert 0 < lease_left_s(number) <= lease_s
    assert [trial.outcome for trial in optimizer.list_trials("job").trials] == [None] * 3


def test_the_databases_clock_is_unix_time(app: Flask) -> None:
    before = time.time()
    with transaction(read_only=True) as connection:
        now = float(connection.execute(select(unix_now())).scalar_one())
    assert before - 1 <= now <= time.time() + 1  # on this machine
