"""Figures are Plotly's JSON, with what a person needs to know of what was left out."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from service.db.test_power_profiles import profile
from service.jobs import HARDWARE, spec
from zeus_service.api.messages import Job, OnHardware
from zeus_service.api.savings_messages import (
    Estimate,
    JobSavings,
    SavedAmounts,
    SavedInWeek,
    SavedOnHardware,
    Savings,
    SavingsPoint,
    Spent,
)
from zeus_service.bandit.hardware import Hardware
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.db.queries import POINTS
from zeus_service.pages import figures


def row(**values: Any) -> Any:
    base = {
        "trial_number": 1,
        "sequence": 1,
        "batch_size": 32,
        "outcome": "converged",
        "cost": 2000.0,
        "hardware": HARDWARE,
    }
    return SimpleNamespace(**{**base, **values})


def on_hardware(hardware: Hardware = HARDWARE, **changes: Any) -> OnHardware:
    arms = [
        ArmEstimate(size, 1, 1000.0 * size, 100.0 * size, "alive") for size in spec().batch_sizes
    ]
    known = {"stage": "learning", "best_batch_size": 8, "cost_bound": 20_000.0, "arms": arms}
    return OnHardware(**asdict(hardware), **{**known, **changes})


def job(**changes: Any) -> Job:
    values = {
        "job_id": "job",
        "stage": "learning",
        "best_batch_size": 8,
        "trials": 3,
        "updated_at": 0.0,
        "spec": spec(),
        "hardware": [on_hardware()],
        "outcomes": {},
        "target_metric": 0.9,
        "completed_baselines": 0,
        "next_trial": None,
    }
    return Job(**{**values, **changes})


def test_each_batch_size_has_a_colour_of_its_own() -> None:
    sizes = list(range(1, 129))
    colours = figures.batch_size_colours(spec(batch_sizes=sizes, default_batch_size=1))
    assert len(set(colours.values())) == 128
    assert figures.batch_size_colours(spec(batch_sizes=[32]))


def test_the_valley_has_the_estimates_with_intervals_the_runs_and_the_threshold() -> None:
    rows = [row(cost=9000.0), row(trial_number=2, outcome="early_stopped", cost=15_000.0)]
    figure = figures.valley(job(), rows)
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert list(traces) == ["estimate", "converged", "early stopped"]
    assert traces["estimate"]["y"] == [8e3, 16e3, 32e3, 64e3, 128e3]
    assert traces["estimate"]["error_y"]["array"][0] == 8e3 * 0.2
    assert traces["early stopped"]["y"] == [15e3]
    lines = {line["label"]["text"]: line for line in figure["layout"]["shapes"]}
    assert (lines["early stop"]["y0"], lines["early stop"]["y1"]) == (20e3, 20e3)
    assert lines["default"]["x0"] == spec().batch_sizes.index(spec().default_batch_size)
    assert figure["layout"]["yaxis"]["range"] == [0, pytest.approx(1.15 * 20e3)]


OTHER = replace(HARDWARE, device_model="<b>Other", max_power_w=300.0)


def test_each_hardware_has_a_row_and_a_curve_of_its_own() -> None:
    rows = [row(cost=9000.0), row(trial_number=2, cost=100.0, hardware=OTHER)]
    two = job(hardware=[on_hardware(), on_hardware(OTHER, cost_bound=400.0)])
    for figure in (figures.valley(two, rows), figures.costs(two, rows)):
        axes = {trace["yaxis"]: trace["y"] for trace in figure["data"] if "text" in trace}
        assert axes == {"y": [100.0], "y2": [9000.0]}  # the latest hardware first
        titles = [figure["layout"][name]["title"]["text"] for name in ("yaxis", "yaxis2")]
        assert titles == [
            f"1 \N{MULTIPLICATION SIGN} {name}" for name in ("&lt;b&gt;Other", "Fake GPU")
        ]
        shown = [trace["name"] for trace in figure["data"] if trace["showlegend"]]
        assert len(shown) == len(set(shown))
    lines = figures.valley(two, rows)["layout"]["shapes"]
    bounds = {line["yref"]: line["y0"] for line in lines if line["label"]["text"] == "early stop"}
    assert bounds == {"y": 400.0, "y2": 20_000.0}
    spent = [Spent(energy_j=1.0, time_s=1.0, cost=cost) for cost in (10_000.0, 9000.0)]
    point = {"trial_number": 1, "ended_at": 0.0, "recurrences": 1, "saved": None}
    points = [SavingsPoint(**point, hardware=index, spent=spent[index]) for index in range(2)]
    each = [SavedOnHardware.model_construct(**asdict(known)) for known in (HARDWARE, OTHER)]
    curves = figures.regret(two, JobSavings.model_construct(points=points, hardware=each))["data"]
    assert [curve["y"] for curve in curves] == [[2000.0], [1000.0]]


def test_the_latest_kinds_of_hardware_are_drawn_and_the_note_says_so() -> None:
    many = [replace(HARDWARE, num_devices=number) for number in range(1, 7)]
    rows = [row(hardware=each) for each in many]
    figure = figures.costs(job(hardware=list(map(on_hardware, many))), rows)
    assert len(figure["data"]) == 4
    assert figure["note"] == "The latest 4 of 6 kinds of hardware."


def test_what_was_left_out_is_said() -> None:
    rows = [row(trial_number=number) for number in range(1, POINTS + 1)]
    for draw in (figures.valley, figures.costs):
        assert draw(job(trials=5000), rows)["note"] == "The latest 1,000 of 5,000 runs."
        assert draw(job(trials=5000), rows[:2])["note"] == ""  # others are in flight or withdrawn
        assert draw(job(trials=0), [])["note"] == "No run has ended yet."


def test_a_legend_names_the_gpu_models_of_few_batch_sizes() -> None:
    profiles = [
        profile(batch_size=size, device_model=model) for size in range(1, 7) for model in "ABC"
    ]
    figure = figures.power(spec(), profiles)
    assert figure["layout"]["showlegend"]
    assert "6 on 2 \N{MULTIPLICATION SIGN} C" in {trace["name"] for trace in figure["data"]}


@pytest.mark.parametrize("converged", [1, 0])
def test_regret_is_what_runs_cost_beyond_the_best(converged: int) -> None:
    spent = Spent(energy_j=1.0, time_s=1.0, cost=10_000.0)
    point = {
        "hardware": 0,
        "trial_number": 2,
        "ended_at": 0.0,
        "recurrences": converged,
        "saved": None,
    }
    points = [SavingsPoint(**point, spent=spent)]
    here = SavedOnHardware.model_construct(**asdict(HARDWARE))
    savings = JobSavings.model_construct(points=points, hardware=[here])
    figure = figures.regret(job(), savings)
    assert figure["data"][0]["y"] == [10_000.0 - 8000.0 * converged]
    assert figure["note"] == ""
    unknown = figures.regret(job(hardware=[on_hardware(best_batch_size=None)]), savings)
    assert unknown["data"] == []
    assert "not known yet" in unknown["note"]


def test_what_all_jobs_have_saved_is_drawn_by_week_with_intervals() -> None:
    energy = Estimate(estimate=7.2e7, low=3.6e7, high=10.8e7)
    saved = SavedAmounts.model_construct(energy_j=energy)
    weeks = [SavedInWeek.model_construct(week="2026-11-23", recurrences=1, saved=saved)]
    figure = figures.saved_by_all(
        Savings.model_construct(saved=saved, weeks=weeks, estimated=False)
    )
    (bars,) = figure["data"]
    assert (bars["x"], bars["y"]) == (["2026-11-23"], [20_000.0])
    assert bars["error_y"]["array"] == [10_000.0]
    assert figure["layout"]["yaxis"]["ticksuffix"] == "Wh"
    assert figure["summary"] == "Saved so far: 20.0 kWh, 10.0 kWh to 30.0 kWh."


def test_a_run_has_its_power_between_reports() -> None:
    rows = [
        row(epoch=1, time_s=10.0, energy_j=500.0, metric=0.1, cost_bound=None),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
    ]
    traces = {trace["name"]: trace for trace in figures.run(spec(), rows)["data"]}
    assert traces["power"]["y"] == [50.0, 200.0, None]
    assert traces["bound"]["y"][0] is None
    json.dumps(traces, allow_nan=False)
    assert figures.run(spec(), [])["data"] == []


def test_names_are_no_markup() -> None:
    rows = [row(epoch=1, time_s=1.0, energy_j=1.0, metric=0.5, cost_bound=None)]
    figure = figures.run(spec(monitor="<a href='x'>acc"), rows)
    assert "<a" not in json.dumps(figure)


def test_a_long_name_fits_its_axis() -> None:
    rows = [row(epoch=1, time_s=1.0, energy_j=1.0, metric=0.5, cost_bound=None)]
    figure = figures.run(spec(monitor="m" * 255), rows)
    assert len(figure["layout"]["yaxis"]["title"]["text"]) == 24
    assert figure["data"][0]["name"] == "m" * 255
