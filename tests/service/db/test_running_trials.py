"""Running trials have what a progress bar needs."""

from __future__ import annotations

from flask import Flask
from service.jobs import register
from zeus_service import optimizer
from zeus_service.db import running_trials
from zeus_service.messages import Report, TrialEnd


def test_a_running_trial_has_its_first_metric_and_its_latest_report(app: Flask) -> None:
    register()
    for _ in range(3):
        optimizer.start_trial("job", None)
    optimizer.end_trial("job", 2, TrialEnd(outcome="errored"))
    for sequence in (1, 2, 3):
        figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 1.0}
        optimizer.report("job", 3, Report(sequence=sequence, metric=0.1 * sequence, **figures))
    newer, older = running_trials.read("job")
    assert (newer.trial_number, newer.first_metric, newer.epoch) == (3, 0.1, 3)
    assert newer.reported_at >= newer.started_at
    assert (older.trial_number, older.first_metric, older.reported_at) == (1, None, None)
