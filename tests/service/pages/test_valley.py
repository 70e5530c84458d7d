"""The figures of what runs cost say what they show, and show nothing that is not so."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from service.jobs import HARDWARE, spec
from service.pages.plotted import job, on_hardware, row
from zeus_service.api.messages import Job, NextTrial
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.db.queries import POINTS
from zeus_service.pages import figures
from zeus_service.pages.plot import batch_size_colours, log_energy_axis


def oklab(colour: str) -> Any:
    """Coordinates in which equal distances look alike (https://bottosson.github.io/posts/oklab)."""
    to_cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]]
    to_lab = [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    rgb = [(int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5)]
    return to_lab @ np.cbrt(to_cones @ np.array(rgb))


def test_the_colours_of_ten_batch_sizes_look_unlike() -> None:
    ten = batch_size_colours(spec(batch_sizes=list(range(1, 11)), default_batch_size=1))
    coordinates = [oklab(colour) for colour in ten.values()]
    assert min(math.dist(*pair) for pair in pairwise(coordinates)) > 0.075  # 0.047 for even hues


def valley(job_shown: Job, rows: list[Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Traces and lines by name, and the layout."""
    figure = figures.valley(job_shown, rows)
    traces = {trace["name"]: trace for trace in figure["data"]}
    lines = {line["name"]: line for line in figure["layout"]["shapes"]}
    return traces, lines, figure["layout"]


def test_the_valley_has_the_costs_with_intervals_the_runs_and_the_stop_limit() -> None:
    rows = [row(cost=9000.0), row(trial_number=2, outcome="early_stopped", cost=15_000.0)]
    traces, lines, layout = valley(job(), rows)
    assert list(traces) == ["expected", "beyond", "best", "converged", "early stopped"]
    expected = traces["expected"]
    assert expected["y"] == [8e3, 16e3, 32e3, 64e3, 128e3]
    low, high = ArmEstimate(8, 1, 8e3, 800.0, "alive").interval or (0, 0)
    assert expected["error_y"]["array"][0] == pytest.approx(high - 8e3)
    assert expected["error_y"]["arrayminus"][0] == pytest.approx(8e3 - low)
    assert (traces["best"]["x"], traces["best"]["y"]) == ([8], [8e3])
    assert traces["early stopped"]["y"] == [None, 15e3]
    assert traces["early stopped"]["marker"]["symbol"] == ["x", "x"]
    assert (lines["stop limit"]["y0"], lines["stop limit"]["y1"]) == (20e3, 20e3)
    assert layout["xaxis"]["range"] == [-0.4, 4.4]  # those without a cost, too


def test_what_lies_beyond_three_times_the_stop_limit_is_an_arrow() -> None:
    rows = [row(cost=1e6), row(trial_number=2, cost=9000.0), row(trial_number=3, cost=1e-9)]
    traces, _, layout = valley(job(), rows)
    low, high = (10**end for end in layout["yaxis"]["range"])
    assert high == pytest.approx(1.2 * 3 * 20e3)
    assert traces["converged"]["y"] == [None, pytest.approx(high), 9000.0, pytest.approx(low)]
    symbols = traces["converged"]["marker"]["symbol"]
    assert symbols == ["circle", "triangle-up", "circle", "triangle-down"]
    assert traces["beyond"]["x"] == [128]
    assert traces["beyond"]["y"] == [pytest.approx(high)]
    ticks = layout["yaxis"]["ticktext"]
    assert {"0.1 Wh", "1 Wh", "10 Wh"} <= set(ticks)


@pytest.mark.parametrize(
    ("window", "ticks"),
    [
        ((60 * 3600, 3240e3), ["100 Wh", "200 Wh", "500 Wh"]),
        ((600 * 3600, 14.4e6), ["700 Wh", "1 kWh", "1.5 kWh", "2 kWh", "3 kWh"]),
        ((0.5, 200.0), ["1 J", "10 J", "100 J"]),
        ((5400 / 1.4, 5400 * 1.2), ["1.5 Wh"]),
        ((400.0, 9000.0), ["0.2 Wh", "0.5 Wh", "1 Wh", "2 Wh"]),
    ],
)
def test_the_ticks_of_the_valley_are_round(window: tuple[float, float], ticks: list[str]) -> None:
    axis = log_energy_axis("", window)
    pairs = zip(axis["tickvals"], axis["ticktext"], strict=True)
    assert [text for value, text in pairs if window[0] <= value <= window[1]] == ticks


@pytest.mark.parametrize(
    ("best", "changes", "title"),
    [
        (8, {}, "8 costs 75 % less than the default 32: 2.22 Wh instead of 8.89 Wh"),
        (32, {}, "The default, 32, costs the least of the sizes tried"),
        (
            64,
            {},
            "64 costs the least of the sizes tried",
        ),  # by what its failed runs add to the default's
        (None, {}, ""),
        (
            8,
            {"arms": [ArmEstimate(8, 1, 9.0, 1.0, "alive")]},
            "8 costs the least of the sizes tried",
        ),
    ],
)
def test_the_title_of_the_valley_says_what_it_shows(
    best: int | None, changes: dict[str, Any], title: str
) -> None:
    shown = job(hardware=[on_hardware(best_batch_size=best, **changes)])
    assert figures.valley(shown, [])["title"] == title


@pytest.mark.parametrize(
    ("following", "texts"),
    [
        (16, ["8", "16<br><br>next", "32<br>default", "64", "128"]),
        (32, ["8", "16", "32<br>default<br>next", "64", "128"]),
        (None, ["8", "16", "32<br>default", "64", "128"]),
    ],
)
def test_the_default_and_the_next_batch_size_are_named(
    following: int | None, texts: list[str]
) -> None:
    shown = job(next_trial=NextTrial(batch_size=following, reason=""))
    _, _, layout = valley(shown, [])
    assert layout["xaxis"]["ticktext"] == texts
    assert layout["xaxis"]["tickvals"] == [8, 16, 32, 64, 128]


def test_of_many_batch_sizes_some_have_ticks_and_those_that_are_named_have_them() -> None:
    many = spec(batch_sizes=list(range(1, 129)), default_batch_size=3)
    _, _, layout = valley(job(spec=many, next_trial=NextTrial(batch_size=127, reason="")), [])
    ticks = layout["xaxis"]["tickvals"]
    assert {3, 127} <= set(ticks)
    assert min(after - before for before, after in pairwise(ticks)) >= 11  # no label on another


def test_the_valley_is_of_the_latest_hardware_and_every_run_is_among_the_costs() -> None:
    other = replace(HARDWARE, device_model="Other", max_power_w=300.0)
    rows = [row(cost=9000.0), row(trial_number=2, cost=100.0, hardware=other)]
    two = job(hardware=[on_hardware(), on_hardware(other, cost_bound=400.0)])
    traces, lines, _ = valley(two, rows)
    assert traces["converged"]["y"] == [None, 100.0]
    assert lines["stop limit"]["y0"] == 400.0
    note = figures.valley(two, rows)["note"]
    assert note == "Shows only the latest hardware, 1 \N{MULTIPLICATION SIGN} Other."
    (trace,) = figures.costs(two, rows)["data"]
    assert trace["y"] == [None, 9000.0 / 3600, 100.0 / 3600]


def test_what_was_left_out_is_said() -> None:
    rows = [row(trial_number=number) for number in range(1, POINTS + 1)]
    for draw in (figures.valley, figures.costs):
        assert draw(job(trials=5000), rows)["note"] == "Showing the latest 1,000 of 5,000 runs."
        assert draw(job(trials=5000), rows[:2])["note"] == ""  # others are in flight or withdrawn
        assert draw(job(trials=0), [])["note"] == "No run has ended yet."
