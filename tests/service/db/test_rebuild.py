"""What a job makes of its trials when the end of one of them changes."""

from __future__ import annotations

import pytest
from flask import Flask
from service.conftest import on_sqlite
from service.jobs import OTHER, register, report
from zeus_service import maintenance, optimizer
from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.registry import POLICIES


def complete(number: int, *metrics: float) -> str | None:
    """Report 1 s and 1 J for each epoch, and end as completed; the outcome that follows."""
    for epoch, metric in enumerate(metrics, 1):
        optimizer.report("job", number, report(epoch, metric=metric))
    return optimizer.end_trial("job", number, "completed").outcome


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_knows_as_much_of_baselines_as_of_controls_that_stopped_at_the_target(
    app: Flask, policy: str
) -> None:
    """Baselines that end in any order, with a failure between them."""
    register(policy=policy, hardware=None, target_metric=None)
    for _ in range(4):
        optimizer.start_trial("job", hardware=OTHER)
    optimizer.end_trial("job", 2, "diverged")
    for number in (4, 1, 3):
        complete(number, 0.1, 0.7, 0.7, 0.3)
    learned = optimizer.get_job("job")
    assert learned.spec["target_metric"] == 0.7
    assert maintenance.rebuild("job")

    maintenance.delete_job("job", force=True)
    register(policy=policy, hardware=None, target_metric=0.7)
    for _ in range(4):
        optimizer.start_trial("job", hardware=OTHER, control=True)
    optimizer.end_trial("job", 2, "diverged")
    for number in (4, 1, 3):
        for epoch, metric in ((1, 0.1), (2, 0.7)):
            optimizer.report("job", number, report(epoch, metric=metric))
    given = optimizer.get_job("job")
    for name in ("state", "ledger", "exhausted", "best_batch_size", "failures", "saved_energy_j"):
        assert getattr(learned, name) == getattr(given, name), name
    assert learned.best_batch_size == 32


@on_sqlite
def test_what_a_baseline_spent_counts_up_to_the_target_or_whole_if_it_missed_it(app: Flask) -> None:
    register(target_metric=None, baseline_runs=2)
    for _ in range(3):
        optimizer.start_trial("job")
    assert complete(1, 0.5, 0.8, 0.1) == "completed"
    assert complete(2, 0.5, 0.8, 0.1) == "converged"
    job = optimizer.get_job("job")
    assert job.saved_energy_j == pytest.approx(0.0, abs=1e-9)
    assert complete(3, 0.5, 0.5, 0.5, 0.5) == "completed"
    job = optimizer.get_job("job")
    assert job.saved_energy_j == pytest.approx(-4.0)
    assert maintenance.rebuild("job")


@on_sqlite
@pytest.mark.parametrize("last", ["completed", "diverged"])
def test_a_baseline_that_completes_ends_the_failures_in_a_row(app: Flask, last: Outcome) -> None:
    register(target_metric=None, baseline_runs=2)
    for _ in range(5):
        optimizer.start_trial("job")
    optimizer.end_trial("job", 1, "diverged")
    assert optimizer.get_job("job").failures == 1
    complete(2, 0.8)
    assert optimizer.get_job("job").failures == 0
    complete(3, 0.8)
    optimizer.end_trial("job", 4, "diverged")
    optimizer.report("job", 5, report(1, metric=0.1))
    optimizer.end_trial("job", 5, last)
    assert optimizer.get_job("job").failures == (0 if last == "completed" else 2)
