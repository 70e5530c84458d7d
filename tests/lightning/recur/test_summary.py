"""What recurrences cost, and how sure the difference from the controls is."""

from __future__ import annotations

import itertools
from io import StringIO
from typing import Any, get_args

import pytest
from records import report, trial_start
from rich.console import Console

from zeus_lightning.messages import Outcome, Why
from zeus_lightning.recur import summary
from zeus_lightning.recur.ending import Ending, RunOutcome
from zeus_lightning.recur.progress import Try
from zeus_lightning.recur.summary import RecurrenceTotals, differences, line

ROW = {
    "recurrence": 1,
    "try": 1,
    "control": False,
    "batch_size": 8,
    "why": "explore",
    "outcome": "converged",
    "result": "done",
    "epochs": 2,
    "time_s": 1.0,
    "energy_j": 2.0,
    "cost_j": 3.0,
    "estimated": False,
}


def recurrence(number: int, cost_j: float, *, converged: bool = True) -> RecurrenceTotals:
    return RecurrenceTotals(
        number=number,
        control=number % 2 == 1,
        baseline=False,
        tries=1,
        converged=converged,
        cost_j=cost_j,
        energy_j=cost_j,
        time_s=cost_j,
        estimated=False,
    )


def test_a_recurrence_takes_what_all_its_tries_took() -> None:
    failed = ROW | {"outcome": "early_stopped", "result": "again"}
    no_trial = ROW | {"try": 2, "time_s": None, "energy_j": None, "cost_j": None}
    (found,) = summary.recurrences([failed, no_trial, ROW | {"try": 3}])
    assert (found.tries, found.converged) == (3, True)
    assert (found.time_s, found.energy_j, found.cost_j) == (2.0, 4.0, 6.0)
    assert found.unmeasured == 1
    caption = str(summary.table([found]).caption)
    assert "a try counts the last trial of its script" in caption
    assert "without a report, of 0 J and 0 s: 1" in caption


def test_baselines_are_compared_with_nothing_and_completing_is_what_they_are_to_do() -> None:
    tries = [
        ROW | {"recurrence": 1, "why": "baseline", "outcome": "completed"},
        ROW | {"recurrence": 2, "why": "baseline", "outcome": "converged", "control": True},
        *(ROW | {"recurrence": number, "control": number == 4} for number in (3, 4, 5)),
    ]
    found = summary.recurrences(tries)
    assert [each.baseline for each in found] == [True, True, False, False, False]
    assert all(each.converged for each in found)
    assert {each.pairs for each in differences(found)} == {1}  # 4 and 5
    console = Console(width=80, record=True, file=StringIO())
    console.print(summary.table(found))
    for row in ("baseline  2 of 2", "control   1 of 1", "chosen    2 of 2"):
        assert row in console.export_text(clear=False)


def test_the_interval_is_that_of_the_paired_t_test_whatever_drifts() -> None:
    costs = [10, 9, 110, 108, 1010, 1007]
    cost, *_ = differences([recurrence(i, cost) for i, cost in enumerate(costs, 1)])
    assert (cost.pairs, cost.chosen - cost.control) == (3, pytest.approx(-2))
    half = 4.302653 / 3**0.5  # Student's t, two degrees of freedom; standard deviation 1
    assert cost.low == pytest.approx(-2 - half, rel=1e-6)
    assert cost.high == pytest.approx(-2 + half, rel=1e-6)


def test_only_pairs_that_converged_are_compared() -> None:
    found = [
        recurrence(1, 10),
        recurrence(2, 5, converged=False),
        recurrence(3, 10),
        recurrence(4, 8),
        recurrence(5, 10),
    ]
    cost, energy, _ = differences(found)
    assert (cost.pairs, cost.low) == (1, None)
    assert str(energy) == (
        "energy: 8.0 J a recurrence, control 10.0 J: 20.0 % less (one pair: no interval)"
    )


def test_the_later_half_is_compared_by_itself() -> None:
    costs = [10, 30, 10, 30, 10, 5, 10, 5]
    lines = list(summary.comparison([recurrence(i, cost) for i, cost in enumerate(costs, 1)]))
    assert "cost: 17.5 J a recurrence, control 10.0 J: 75.0 % more" in lines[0]
    assert lines[3] == "Of the later half alone, from recurrence 5 on:"
    assert "50.0 % less (95 % interval 50.0 % less to 50.0 % less; 2 pairs)" in lines[4]


def run(outcome: Any, **fields: Any) -> RunOutcome:
    return RunOutcome(
        trial=trial_start(batch_size=16384, why=fields.pop("why", "explore")),
        default_batch_size=8,
        outcome=outcome,
        reason="a long story " * 30,
        report=report(epoch=100, time_s=1234567.8, energy_j=1234567890.1),
        cost_j=2345678901.2,
        **{"estimated": False, **fields},
    )


def test_no_outcome_makes_a_line_longer_than_80_columns() -> None:
    each = Try(recurrence=1000, attempt=12, control=False, seed=None)
    for why, outcome, estimated in itertools.product(
        get_args(Why), (*get_args(Outcome), None), (True, False)
    ):
        recorded = run(outcome, why=why, estimated=estimated)
        for written, code in itertools.product((recorded, None), (0, 1, 75, -9, None)):
            shown = line(each, Ending(exit_code=code, run=written))
            assert len(shown) <= 80, shown


def test_a_trial_that_was_killed_has_its_size_and_joules_though_a_pipeline_ended_with_0() -> None:
    each = Try(recurrence=1, attempt=1, control=False, seed=None)
    shown = line(each, Ending(exit_code=0, run=run(None)))
    expected = ["1.1", "16384", "explore", "killed", "100", "1234568", "1234567890", "2345678901"]
    assert shown.split() == expected
