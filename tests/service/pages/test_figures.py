"""Figures are Plotly's JSON, with what a person needs to know of what was left out."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from service.db.test_power_profiles import profile
from service.jobs import spec
from zeus_service.api.messages import (
    Estimate,
    Job,
    JobSavings,
    PowerProfile,
    SavedAmounts,
    SavedOnDay,
    Savings,
    SavingsPoint,
    Spent,
)
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.db.queries import POINTS
from zeus_service.pages import figures, plotting


def row(**values: Any) -> Any:
    base = {
        "trial_number": 1,
        "sequence": 1,
        "batch_size": 32,
        "outcome": "converged",
        "cost": 2000.0,
    }
    return SimpleNamespace(**{**base, **values})


def job(**changes: Any) -> Job:
    arms = [
        ArmEstimate(size, 1, 1000.0 * size, 100.0 * size, "alive") for size in spec().batch_sizes
    ]
    values = {"job_id": "job", "stage": "learning", "best_batch_size": 8, "trials": 3} | {
        "updated_at": 0.0, "spec": spec(), "cost_bound": 20_000.0, "arms": arms, "outcomes": {},
    }  # fmt: skip
    return Job(**{**values, **changes})


def test_each_batch_size_has_a_colour_of_its_own() -> None:
    sizes = list(range(1, 129))
    colours = plotting.batch_size_colours(spec(batch_sizes=sizes, default_batch_size=1))
    assert len(set(colours.values())) == 128
    assert plotting.batch_size_colours(spec(batch_sizes=[32]))


def test_the_valley_has_the_estimates_their_band_the_runs_and_the_bound() -> None:
    rows = [row(cost=9000.0), row(trial_number=2, outcome="early_stopped", cost=15_000.0)]
    figure = figures.valley(job(), rows)
    traces = {trace["name"]: trace for trace in figure["data"]}
    assert list(traces) == [
        "95 % band of the estimate", "estimate", "converged", "early stopped", "early stop",
    ]  # fmt: skip
    assert traces["estimate"]["y"] == [8.0, 16.0, 32.0, 64.0, 128.0]
    band = traces["95 % band of the estimate"]["y"]
    assert (band[0], band[-1]) == (8 * 1.2, 8 * 0.8)
    assert traces["early stop"]["y"] == [20.0, 20.0]
    assert traces["early stopped"]["y"] == [15.0]
    assert figure["layout"]["yaxis"]["title"]["text"] == "cost of a run (kJ)"


def test_what_was_left_out_is_said() -> None:
    rows = [row(trial_number=number) for number in range(1, POINTS + 1)]
    for draw in (figures.valley, figures.costs):
        assert draw(job(trials=5000), rows)["note"] == "The latest 1,000 of 5,000 runs."
        assert draw(job(trials=5000), rows[:2])["note"] == ""  # others are in flight or withdrawn
        assert draw(job(trials=0), [])["note"] == "No run has ended yet."


def test_costs_that_differ_much_have_a_logarithmic_axis() -> None:
    for high, kind in ((3e4, None), (3e5, "log")):
        rows = [row(cost=2e3), row(trial_number=2, cost=high)]
        layout = figures.costs(job(), rows)["layout"]
        assert layout["yaxis"].get("type") == kind


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(2e3, 3e5, {"dtick": "D2"}), (2e3, 3e9, {}), (2e-9, 3e12, {"exponentformat": "e"})],
)
def test_ticks_of_a_logarithmic_axis_do_not_overlap(
    low: float, high: float, ticks: dict[str, str]
) -> None:
    rows = [row(cost=low), row(trial_number=2, cost=high)]
    axis = figures.costs(job(), rows)["layout"]["yaxis"]
    assert {name: axis[name] for name in ("dtick", "exponentformat") if name in axis} == ticks


def test_a_power_of_ten_without_a_prefix_is_no_superscript() -> None:
    values = {"time_s": 1.0, "energy_j": 1.0, "cost_bound": None}
    rows = [row(epoch=1, metric=-1e30, **values), row(epoch=2, metric=0.0, **values)]
    layout = figures.run(spec(), rows)["layout"]
    assert layout["yaxis"]["exponentformat"] == "e"
    assert "exponentformat" not in layout["yaxis2"]


def test_many_batch_sizes_leave_room_for_the_figure() -> None:
    sizes = range(1, 129)
    of_many = spec(batch_sizes=list(sizes), default_batch_size=1)
    rows = [row(batch_size=size, trial_number=size) for size in sizes]
    many = figures.costs(job(spec=of_many), rows)
    assert not many["layout"]["showlegend"]
    assert "violet for the smallest" in many["note"]
    assert figures.costs(job(spec=of_many), rows[:5])["layout"]["showlegend"]
    valley = figures.valley(job(spec=of_many), rows)
    ticks = valley["layout"]["xaxis"]["tickvals"]
    assert len(ticks) <= 11
    assert all(high / low > 1.6 for low, high in pairwise(ticks))


def test_a_legend_names_the_gpu_models_of_few_batch_sizes() -> None:
    profiles = [
        PowerProfile.model_validate(profile(batch_size=size, device_model=model))
        for size in range(1, 7)
        for model in "ABC"
    ]
    figure = figures.power(spec(), profiles)
    assert figure["layout"]["showlegend"]
    assert "6 on C" in {trace["name"] for trace in figure["data"] if trace["showlegend"]}


@pytest.mark.parametrize("converged", [1, 0])
def test_regret_is_what_runs_cost_beyond_the_best(converged: int) -> None:
    spent = Spent(energy_j=1.0, time_s=1.0, cost=10_000.0)
    point = {"trial_number": 2, "ended_at": 0.0, "recurrences": converged, "saved": None}
    points = [SavingsPoint(**point, spent=spent)]
    savings = JobSavings.model_construct(points=points, spent=spent, recurrences=converged)
    figure = figures.regret(job(), savings)
    assert figure["data"][0]["y"] == [10.0 - 8.0 * converged]
    assert figure["note"] == ""
    unknown = figures.regret(job(best_batch_size=None), savings)
    assert unknown["data"] == []
    assert "not known yet" in unknown["note"]


@pytest.mark.parametrize(
    ("joules", "drawn", "unit", "text"),
    [(120.0, 120.0, "J", "120 J"), (7.2e7, 20.0, "kWh", "20.0 kWh")],
)
def test_what_was_saved_has_a_unit_that_suits_it(
    joules: float, drawn: float, unit: str, text: str
) -> None:
    energy = Estimate(estimate=joules, low=joules / 2, high=1.5 * joules)
    saved = SavedAmounts.model_construct(energy_j=energy)
    days = [SavedOnDay.model_construct(day="2026-11-23", recurrences=1, saved=saved)]
    figure = figures.saved_by_all(Savings.model_construct(saved=saved, days=days, estimated=False))
    band, line = figure["data"]
    assert band["y"] == [1.5 * drawn, 0.5 * drawn]
    assert line["y"] == [drawn]
    assert figure["layout"]["yaxis"]["title"]["text"] == f"{unit} saved"
    assert text in figure["summary"]
    axis = figure["layout"]["xaxis"]
    assert (axis["range"], axis["dtick"]) == (["2026-11-22", "2026-11-24"], 86_400_000)


def test_a_run_has_its_power_between_reports() -> None:
    rows = [
        row(epoch=1, time_s=10.0, energy_j=500.0, metric=0.1, cost_bound=None),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
    ]
    traces = {trace["name"]: trace for trace in figures.run(spec(), rows)["data"]}
    assert traces["power (W)"]["y"] == [50.0, 200.0, None]
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
