"""Figures are Plotly's JSON, with what a person needs to know of what was left out."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

from service.db.test_power_profiles import profile
from service.jobs import HARDWARE, OTHER, spec
from service.pages.plotted import job, on_hardware, row
from zeus_service.api.savings_report import (
    JobSavings,
    SavedOnHardware,
    Spent,
)
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.bandit.spec import Hardware
from zeus_service.pages import figures
from zeus_service.savings.report import Amounts, Estimate


def test_a_legend_names_the_gpu_models_of_few_batch_sizes() -> None:
    profiles = [
        profile(batch_size=size, device_model=model) for size in range(1, 7) for model in "ABC"
    ]
    figure = figures.power(spec(), profiles)
    assert figure["layout"]["showlegend"]
    assert "6 on 2 \N{MULTIPLICATION SIGN} C" in {trace["name"] for trace in figure["data"]}


def spent(cost: float, recurrences: int, hardware: Hardware = HARDWARE) -> SavedOnHardware:
    """What a job has spent on some hardware, in all."""
    nothing = {"expected": None, "default_runs": 0, "saved": None}
    amounts = Spent(energy_j=1.0, time_s=1.0, cost=cost)
    return SavedOnHardware(**asdict(hardware), spent=amounts, recurrences=recurrences, **nothing)


ERA = SimpleNamespace(expected_energy_j=7200.0, expected_energy_error_j=3600.0)


def test_regret_compares_each_run_with_the_best_on_its_own_hardware() -> None:
    best_there = [ArmEstimate(8, 1, 500.0, 1.0, "alive")]
    two = job(hardware=[on_hardware(), on_hardware(OTHER, arms=best_there)])
    ended = [(row(cost=10_000.0), ERA), (row(cost=9000.0, hardware=OTHER), ERA)]
    in_all = [spent(10_000.0, 1), spent(9000.0, 1, OTHER)]
    (curve,) = figures.regret(two, JobSavings.model_construct(hardware=in_all), ended)["data"]
    assert curve["y"] == [2000.0 / 3600, 10_500.0 / 3600]


def test_regret_is_what_runs_cost_beyond_the_best() -> None:
    ended = [
        (row(cost=10_000.0, outcome="errored"), ERA),
        (row(trial_number=2, cost=3000.0), None),  # its meter was dead
        (row(trial_number=3, cost=10_000.0), ERA),
    ]
    earlier = 500.0  # of runs that are not drawn
    savings = JobSavings.model_construct(hardware=[spent(20_000.0 + earlier, 1)])
    figure = figures.regret(job(), savings, ended)
    curve = figure["data"][0]
    assert (curve["x"], curve["y"]) == ([1, 3], [10_500.0 / 3600, 12_500.0 / 3600])
    assert figure["layout"]["yaxis"]["ticksuffix"] == " Wh"
    assert figure["note"] == ""
    unknown = figures.regret(job(hardware=[on_hardware(best_batch_size=None)]), savings, ended)
    assert unknown["data"] == []
    assert "not known yet" in unknown["note"]


def test_a_sum_that_is_zero_but_for_rounding_is_zero() -> None:
    parts = (0.1 * 7200.0, 0.2 * 7200.0, 0.3 * 7200.0)
    ended = [
        (row(trial_number=number, energy_j=0.0), SimpleNamespace(**vars(ERA) | each))
        for number, part in enumerate(parts, start=1)
        for each in [{"expected_energy_j": part, "expected_energy_error_j": part}]
    ]
    in_all = Estimate.of(sum(parts) - 1e-9, sum(parts) + 1e-9)
    savings = JobSavings.model_construct(saved=Amounts(*[in_all] * 3), estimated=False)
    band, line = figures.saved(savings, ended)["data"]
    assert [band["y"][0], band["y"][-1], line["y"][0]] == [0.0, 0.0, 0.0]
    assert line["hovertext"][0] == "0 J, 0 to 0 J"


def test_the_metric_of_a_run_in_flight_is_a_curve_below_its_target() -> None:
    rows = [row(epoch=1, metric=0.1), row(epoch=2, metric=0.5)]
    curve = figures.metric_curve(spec(target_metric=0.9), rows)
    assert curve == {"points": "50.0,29.0 100.0,15.0", "target": "1.0"}
    assert figures.metric_curve(spec(target_metric=0.9), [])["points"] == ""
    assert figures.metric_curve(spec(target_metric=None), rows)["target"] is None


def test_a_run_has_its_power_between_reports() -> None:
    rows = [
        row(epoch=1, time_s=10.0, energy_j=500.0, metric=0.1, cost_bound=None),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
        row(epoch=2, time_s=20.0, energy_j=2500.0, metric=0.2, cost_bound=3000.0),
    ]
    *_, power, _, limit = figures.compare(spec(), [(row(), rows)])["data"]
    assert (power["yaxis"], power["y"]) == ("y2", [50.0, 200.0, None])
    assert (limit["name"], limit["y"][0]) == ("stop limit", None)
    json.dumps([power, limit], allow_nan=False)


def test_runs_are_compared_over_their_epochs() -> None:
    reports = [row(epoch=n, time_s=10.0 * n, energy_j=500.0 * n, metric=0.1 * n) for n in (1, 2)]
    figure = figures.compare(spec(), [(row(trial_number=n), reports) for n in (9, 8)])
    assert [(trace["name"], trace["yaxis"]) for trace in figure["data"]] == [
        (f"run {number} (32)", axis) for number in (9, 8) for axis in ("y", "y2", "y3")
    ]
    assert [trace["y"] for trace in figure["data"][:2]] == [[0.1, 0.2], [50.0, 50.0]]
    assert len({trace["line"]["color"] for trace in figure["data"]}) == 2
    assert figures.compare(spec(), [(row(), [])])["data"] == []


def test_a_long_name_fits_its_axis() -> None:
    rows = [row(epoch=1, time_s=1.0, energy_j=1.0, metric=0.5, cost_bound=None)]
    figure = figures.compare(spec(monitor="m" * 255), [(row(), rows)])
    title = figure["layout"]["yaxis"]["title"]["text"]
    assert title == "m" * 17 + "\N{HORIZONTAL ELLIPSIS}"
