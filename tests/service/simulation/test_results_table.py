"""The table of a simulation."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from zeus_service.simulation.results_table import legend, table, write_csv
from zeus_service.simulation.summary import Ratio, Summary

SUMMARY = Summary(
    workload="sentiment140",
    gpu="rtx6000",
    policy="zeus",
    replays=2,
    none_left=0,
    recurrences=40,
    cost=Ratio(1.25, 0.0125),
    early_cost=Ratio(1.5, 0.1),
    energy=Ratio(0.5, 0.01),
    time=Ratio(1.125, 0.01),
    tries_wasted=2.5,
    cost_wasted=0.2,
    given_up=0.0,
    final=2048,
    final_share=1.0,
)


def shown(*summaries: Summary, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table(summaries))
    return capture.get()


def test_policies_stand_under_their_workload_within_eighty_columns() -> None:
    other = replace(SUMMARY, policy="a-policy-of-some-name", final=None)
    lines = shown(SUMMARY, other).splitlines()
    assert max(map(len, lines)) <= 80
    workload, zeus, another = lines[3:6]
    assert workload.split() == ["sentiment140", "rtx6000"]
    assert zeus.split() == ["zeus", "1.250±.013", "1.500", "0.50", "1.12", "2.5", "2048", "100%"]
    assert another.split()[0] == "a-policy-of-some-name"
    assert another.split()[-1] == "-"


def test_one_replay_has_no_error() -> None:
    assert "±" not in shown(replace(SUMMARY, cost=Ratio(1.25, float("nan"))))


@pytest.mark.parametrize(
    ("error", "text"), [(0.25, "±.250"), (1.0, "±1.000"), (10.234, "±10.234"), (200.5, "±200.500")]
)
def test_only_the_zero_before_the_point_is_left_out(error: float, text: str) -> None:
    assert f"1.250{text} " in shown(replace(SUMMARY, cost=Ratio(1.25, error)))


def test_a_policy_that_gave_up_has_no_figures_and_an_unknown_default_is_explained() -> None:
    nan = Ratio(math.nan, math.nan)
    gone = replace(SUMMARY, none_left=2, cost=nan, early_cost=nan, energy=nan, time=nan, final=None)
    other = replace(SUMMARY, policy="other", energy=nan, time=nan)
    zeus, another = (line.split() for line in shown(gone, other).splitlines()[4:6])
    assert zeus == ["zeus", "gave", "up", "-", "-", "-", "2.5", "-"]
    assert another[1:5] == ["1.250±.013", "1.500", "-", "-"]
    text = legend([gone, other])
    assert "sentiment140 rtx6000 with zeus: gave up in 2 of 2 replays" in text
    assert "with other" not in text
    assert text.count("no recorded run of the default batch size reaches the target") == 1


def test_what_never_reached_its_target_is_told() -> None:
    assert "gave up" not in legend([SUMMARY])
    given_up = legend([SUMMARY, replace(SUMMARY, policy="other", given_up=1.5)])
    assert "sentiment140 rtx6000 with other gave up 1.5 recurrences of a replay" in given_up
    assert "with zeus" not in given_up


def test_the_csv_has_all_digits() -> None:
    file = StringIO()
    write_csv(file, [SUMMARY, SUMMARY])
    rows = list(csv.DictReader(file.getvalue().splitlines()))
    assert len(rows) == 2
    assert (rows[0]["cost"], rows[0]["cost_error"]) == ("1.25", "0.0125")
    assert (rows[0]["final"], rows[0]["cost_wasted"]) == ("2048", "0.2")
