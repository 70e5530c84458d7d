"""What recurrences took, and what the job has saved, in lines and a table."""

from __future__ import annotations

import itertools
from io import StringIO
from typing import Any, get_args

import pytest
from records import hardware, job_spec, record, report, trial_start
from rich.console import Console

from zeus_lightning.messages import Outcome, Why
from zeus_lightning.recur import summary
from zeus_lightning.recur.ending import Try
from zeus_lightning.recur.summary import line
from zeus_lightning.run.record import TrialRecord


def run(outcome: Any, why: Why = "explore", **fields: Any) -> TrialRecord:
    defaults = {
        "report": report(epoch=100, time_s=1234567.8, energy_j=1234567890.1),
        "hardware": hardware(max_power_w=2800.0),
    }
    trial = trial_start(batch_size=16384, why=why)
    return record(trial=trial, outcome=outcome, **(defaults | fields))


def tried(
    recurrence: int,
    written: TrialRecord | None,
    *,
    attempt: int = 1,
    control: bool = False,
    code: int = 0,
) -> Try:
    return Try(recurrence=recurrence, attempt=attempt, control=control, exit_code=code, run=written)


def test_the_table_has_the_means_of_all_tries_of_baselines_controls_and_chosen() -> None:
    small: Any = {
        "report": report(time_s=1.0, energy_j=2.0),
        "hardware": hardware(max_power_w=4.0),
    }
    tries = [
        tried(1, run("completed", why="baseline", **small)),
        tried(2, run("converged", why="baseline", **small), control=True),
        tried(3, run("not_converged", why="control", **small), control=True),
        tried(4, run("early_stopped", **small)),
        tried(4, None, attempt=2, code=75),
        tried(4, run("converged", **small), attempt=3),
        tried(5, run("converged", **small)),
    ]
    table = summary.table(tries)
    assert table is not None
    console = Console(width=80, record=True, file=StringIO())
    console.print(table)
    rows = [each.split() for each in console.export_text().splitlines()]
    assert ["baseline", "2", "of", "2", "2", "2.0", "1.0", "3.0"] in rows
    assert ["control", "0", "of", "1", "1", "2.0", "1.0", "3.0"] in rows
    assert ["chosen", "2", "of", "2", "4", "3.0", "1.5", "4.5"] in rows
    notes = (
        "cost: a weighted sum of energy and time",
        "baselines train to completion, other runs only to the target",
        "tries without a report (counted as 0 J and 0 s): 1",
    )
    assert table.caption == "; ".join(notes)


def test_a_line_names_the_metric_that_a_run_reached_and_a_baseline_has_completed() -> None:
    reached = tried(1, run("converged", report=report(metric=0.75)))
    assert summary.detail(reached) == f"reached {job_spec().monitor} 0.75 (target >= 0.9)"
    baseline = tried(1, run("converged", why="baseline", reason="baseline 3 of 3", report=report()))
    assert (summary.line(baseline).split()[3], summary.detail(baseline)) == (
        "completed",
        "baseline 3 of 3",
    )
    assert summary.detail(tried(1, run("early_stopped", reason="its cost", report=report()))) == (
        "its cost"
    )
    assert summary.detail(tried(1, None, code=75)) == ""


def test_what_was_saved_is_unknown_until_the_baselines_end_and_the_default_has_converged() -> None:
    learning = job_spec(target_metric=None)
    for outcome, job, event in (
        ("converged", job_spec(), "a run with the default batch size converges"),
        ("completed", learning, "the baselines have set the target"),
        ("converged", learning, "a run with the default batch size converges"),  # the last one
    ):
        tries = [tried(1, run(outcome, job=job)), tried(2, None)]
        (shown,) = summary.saved("nightly", {"saved": None}, tries)
        assert shown == f"Job 'nightly': savings are unknown until {event}."


@pytest.mark.parametrize(
    ("estimate", "low", "high", "text"),
    [
        (-0.04, -9.0, -0.04, "0.0 {unit}, not clearly different from 0 so far"),  # without a sign
        (6.6, -72.9, 86.0, "6.6 {unit}, not clearly different from 0 so far"),
        (6.6, 1.0, 9.0, "6.6 {unit} (95 % interval 1.0 to 9.0 {unit})"),
    ],
)
def test_an_interval_is_shown_only_if_it_is_on_one_side_of_zero(
    estimate: float, low: float, high: float, text: str
) -> None:
    interval = {"estimate": estimate, "low": low, "high": high}
    amounts = {"saved": {"energy_j": interval, "time_s": interval}}
    assert list(summary.saved("nightly", amounts, []))[1:] == [
        f"  energy saved: {text.format(unit='J')}",
        f"  time saved: {text.format(unit='s')}",
    ]


def test_a_job_that_has_used_more_so_far_is_said_to_do_so_at_first() -> None:
    told = "  Negative: the job used more. Trying sizes costs something; judge after more runs."
    more = {"estimate": -1.0, "low": -2.0, "high": -0.5}
    less = {"estimate": 1.0, "low": 0.5, "high": 2.0}
    unclear = {"estimate": -1.0, "low": -2.0, "high": 0.5}
    for energy, time in ((more, less), (less, more), (less, less), (unclear, less)):
        amounts = {"saved": {"energy_j": energy, "time_s": time}}
        is_told = told in summary.saved("nightly", amounts, [])
        assert is_told is (more in (energy, time))


def test_baselines_are_said_to_count_only_until_they_reached_the_target() -> None:
    amounts = {name: {"estimate": 1.0, "low": 0.0, "high": 2.0} for name in ("energy_j", "time_s")}
    for why, is_told in (("baseline", True), ("explore", False)):
        shown = summary.saved("nightly", {"saved": amounts}, [tried(1, run("converged", why))])
        assert (
            "  Unlike in the table, baselines count only until they reach the target." in shown
        ) is is_told


def test_no_outcome_makes_a_line_longer_than_80_columns() -> None:
    for why, outcome, estimated in itertools.product(
        get_args(Why), (*get_args(Outcome), None), (True, False)
    ):
        recorded = run(outcome, why, hardware=hardware(max_power_w=2800.0, estimated=estimated))
        for written, code in itertools.product((recorded, None), (0, 1, 127, -9)):
            shown = line(tried(1000, written, attempt=12, code=code))
            assert len(shown) <= 80, shown


def test_a_trial_that_was_killed_has_its_size_and_joules_though_a_pipeline_ended_with_0() -> None:
    expected = ["1.1", "16384", "explore", "killed", "100", "1234568", "1234567890", "2345678865"]
    assert line(tried(1, run(None))).split() == expected
