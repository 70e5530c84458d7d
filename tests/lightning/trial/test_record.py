"""What is recorded of a trial, and the texts and figures that are made from it."""

from __future__ import annotations

import json

import pytest
from records import hardware, job_spec, record, report

from zeus_lightning.meters import Reading
from zeus_lightning.trial.record import TrialRecord


def test_the_cost_weighs_energy_and_the_time_at_the_highest_power() -> None:
    job = job_spec(eta_knob=0.25)
    last = report(time_s=3.0, energy_j=40.0)
    assert record(job=job, report=last).cost == 0.25 * 40 + 0.75 * 100 * 3
    assert record(job=job).cost is None


@pytest.mark.parametrize(
    ("higher_is_better", "metric", "reached"),
    [(True, 0.9, True), (True, 0.89, False), (False, 0.9, True), (False, 0.91, False)],
)
def test_the_target_is_reached_from_the_jobs_side(
    higher_is_better: bool, metric: float, reached: bool
) -> None:
    job = job_spec(target_metric=0.9, higher_is_better=higher_is_better)
    assert record(job=job, report=report(metric=metric)).target_reached is reached
    assert not record(job=job).target_reached


def test_nothing_is_spent_or_logged_before_the_first_report() -> None:
    assert record().spent == Reading(0.0, 0.0)
    assert record().metrics() == {}
    assert record(report=report(2)).spent == Reading(4.0, 2.0)
    assert record(report=report(2)).metrics()["zeus/power_w"] == 2.0


def test_the_summary_names_the_trial_its_figures_and_how_they_were_measured() -> None:
    ended = record(
        hardware=hardware(estimated=True),
        profiled=True,
        outcome="converged",
        reason="done.",
        report=report(3),
    )
    assert ended.summary() == (
        "trial 1 of job 'job' with batch size 8 ended as converged: done (val_acc 0.5 after 3 "
        "epochs, 3.0 s, 6.0 J (estimated), cost 153.0 J, measuring power limits included)"
    )


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [
        ("not_converged", "it will try another batch size."),
        ("early_stopped", "with window_size or beta_knob=None."),
        ("out_of_memory", "this batch size and larger ones, unless they have converged before."),
    ],
)
def test_a_failure_ends_with_what_to_do_next(outcome: str, advice: str) -> None:
    assert record(outcome=outcome, reason="why").failure().endswith(advice)


def test_a_record_survives_json() -> None:
    for one in (record(), record(report=report(), outcome="lost", reason="why", profiled=True)):
        assert TrialRecord.from_json(json.loads(json.dumps(one.to_json()))) == one
