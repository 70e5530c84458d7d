"""What a job's first tiles say of its best batch size."""

from __future__ import annotations

from flask import Flask
from service.pages.test_routes import add_job


def test_a_job_with_a_single_run_does_not_deny_that_it_converged(app: Flask) -> None:
    def tiles(job_id: str) -> str:
        return str(app.test_client().get(f"/job/{job_id}").text)

    denied = "no run has converged yet"
    three = {"policy": "zeus", "batch_sizes": [8, 16, 32]}
    add_job("new", runs=0, **three)
    assert denied in tiles("new")
    add_job("once", runs=1, **three)  # 32 converges, and 16 fails
    assert "of 1 run<" in tiles("once")
    assert denied not in tiles("once")
