"""What a job's first tiles say of its best batch size."""

from __future__ import annotations

from flask import Flask
from service.pages.test_routes import add_job
from zeus_service import optimizer
from zeus_service.messages import Report, TrialEnd


def test_a_job_without_a_best_batch_size_does_not_deny_the_run_that_converged(app: Flask) -> None:
    def tiles(job_id: str) -> str:
        return str(app.test_client().get(f"/job/{job_id}?part=standing").text)

    denied = "no run has converged yet"
    three = {"policy": "zeus", "batch_sizes": [8, 16, 32]}
    add_job("new", runs=0, **three)
    assert denied in tiles("new")
    add_job("job", runs=0, **three)
    add_job("once", runs=1, **three)  # 32 converges, and 16 fails
    assert "of 1 run<" in tiles("once")
    assert denied not in tiles("once")

    optimizer.start_trial("job", None)
    figures = {"epoch": 1, "time_s": 10.0, "energy_j": 900.0, "metric": 0.95}
    optimizer.report("job", 1, Report(sequence=1, **figures))
    for number, outcome in ((2, "out_of_memory"), (3, "diverged")):  # 16, and 8
        optimizer.start_trial("job", None)
        optimizer.end_trial("job", number, TrialEnd(outcome=outcome))
    assert optimizer.get_job("job").stage == "exhausted"
    assert "the policy has no best batch size now" in tiles("job")
    assert denied not in tiles("job")
