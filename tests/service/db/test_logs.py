"""Events and reports are listed in pages, newest first."""

from __future__ import annotations

from flask import Flask
from service.jobs import register
from zeus_service import optimizer
from zeus_service.db import logs
from zeus_service.messages import Report


def test_pages_of_events_and_reports(app: Flask) -> None:
    register(max_epochs=1000, beta_knob=None)
    assert logs.events("job").rows == []
    optimizer.start_trial("job", None)
    for sequence in range(1, logs.SIZE + 4):
        figures = {"epoch": sequence, "time_s": 1.0, "energy_j": 1.0}
        optimizer.report("job", 1, Report(sequence=sequence, metric=0.1, **figures))
    page = logs.reports("job", 1)
    assert [row.sequence for row in page.rows] == list(range(logs.SIZE + 3, 3, -1))
    assert page.older == 3
    page = logs.reports("job", 1, page.older)
    assert ([row.sequence for row in page.rows], page.older) == ([3, 2, 1], None)
    (event,) = logs.events("job").rows
    assert (event.sequence, event.kind, event.trial_number) == (1, "started", 1)
    assert logs.events("job", 1).older is None
