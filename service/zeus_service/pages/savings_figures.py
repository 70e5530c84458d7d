"""The figures of what was saved: each sum has its 95 % interval, and is negative where it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import accumulate

from zeus_service.messages import Estimate, JobSavings, Savings
from zeus_service.pages.figures import PRUNED
from zeus_service.pages.plotting import (
    Figure,
    figure_of,
    new_layout,
    only_integers,
    rounded,
    what_is_summed,
)
from zeus_service.pages.units import saved_energy
from zeus_service.savings.text import energy_unit

SAVED = "#2b9a66"
_FEW_DAYS = timedelta(days=7)


def by_day(savings: Savings) -> Figure:
    """Plot what all jobs have saved, summed over the days up to today."""
    total, estimates = savings.saved.energy_j, [day.saved.energy_j for day in savings.days]
    before = total.estimate - sum(each.estimate for each in estimates)
    days = [day.day for day in savings.days]
    data, unit = _sums(days, estimates, before, _error(total), "%{x|%b %d}")
    axes = _axes("", unit)
    axes["xaxis"] |= {"type": "date"}
    if days:
        first, last = (date.fromisoformat(days[end]) for end in (0, -1))
        if last - first < _FEW_DAYS:  # plotly would have ticks within them
            day = timedelta(days=1)
            ends = [f"{each}" for each in (first - day, last + day)]
            axes["xaxis"] |= {
                "dtick": 1000 * day.total_seconds(),
                "tickformat": "%b %d",
                "range": ends,
            }
    note = "" if days else "No run has converged yet."
    if savings.estimated and days:
        note = "In part estimated: some meters estimate energy."
    low, middle, high = map(saved_energy, (total.low, total.estimate, total.high))
    return figure_of(data, axes, note, f"Saved so far: {middle}, {low} to {high}.")


def over_runs(savings: JobSavings) -> Figure:
    """Plot what a job has saved, summed over its runs."""
    points = [point for point in savings.points if point.saved is not None]
    if not points:
        note = "What a run of the default batch size takes is not known yet."
        if savings.saved is not None:
            note = f"{PRUNED} Saved by them: {saved_energy(savings.saved.energy_j.estimate)}."
        return figure_of([], new_layout("run", ""), note, "")
    estimates = [point.saved.energy_j for point in points if point.saved]
    total = sum(each.estimate for each in estimates)
    numbers = [point.trial_number for point in points]
    end = savings.saved.energy_j.estimate if savings.saved else total
    error = _error(savings.saved.energy_j) if savings.saved else None
    before = end - total  # saved by runs that were pruned
    data, unit = _sums(numbers, estimates, before, error, "after run %{x}")
    axes = _axes("run", unit)
    only_integers(axes, numbers)
    basis = "runs of the default" if savings.basis == "runs" else "the belief about the default"
    note = f"Against {basis}, with a 95 % band."
    if savings.estimated:
        note += " Energy is estimated."
    note = f"{note} {what_is_summed(savings)}".rstrip()
    return figure_of(data, axes, note, f"Saved so far: {saved_energy(end)}.")


def _sums(
    x: Sequence[object],
    estimates: Sequence[Estimate],
    before: float,
    error: float | None,
    at: str,
) -> tuple[list[Figure], str]:
    """A line of cumulative sums with its band, and their unit.

    Errors add up, since they have a common cause, and are scaled to that of the whole sum: jobs are
    independent, and what is expected has become surer.
    """
    if not x:
        return [], "kWh"
    middle = [before + each for each in accumulate(one.estimate for one in estimates)]
    factor, unit = energy_unit(max(map(abs, middle)))
    errors = list(accumulate(map(_error, estimates)))
    if error is not None and errors[-1] > 0:
        errors = [each * error / errors[-1] for each in errors]
    middle, errors = ([each / factor for each in values] for values in (middle, errors))
    low = [each - error for each, error in zip(middle, errors, strict=True)]
    high = [each + error for each, error in zip(middle, errors, strict=True)]
    mode = "lines" if len(x) > 1 else "markers"
    return [
        {"x": [*x, *reversed(x)], "y": rounded([*high, *reversed(low)]), "fill": "toself"}
        | {"fillcolor": f"{SAVED}2e", "line": {"width": 0}, "mode": "lines", "hoverinfo": "skip"}
        | {"showlegend": False},
        {"x": list(x), "y": rounded(middle), "mode": mode, "showlegend": False}
        | {"line": {"color": SAVED, "width": 2.5}, "marker": {"size": 8, "color": SAVED}}
        | {"hovertemplate": f"{at}: %{{y}} {unit}<extra></extra>"},
    ], unit


def _axes(x_title: str, unit: str) -> Figure:
    axes = new_layout(x_title, f"{unit} saved")
    axes["yaxis"] |= {"rangemode": "normal", "zeroline": True}
    return axes


def _error(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2
