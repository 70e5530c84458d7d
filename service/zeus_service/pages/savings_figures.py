"""The figures of what was saved: each sum has its 95 % interval, and is negative where it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from zeus_service.messages import Estimate, JobSavings, Savings
from zeus_service.pages.plotting import (
    Figure,
    figure_of,
    new_layout,
    only_integers,
    rounded,
    unit_of,
    what_is_summed,
)
from zeus_service.pages.units import joules

SAVED = "#2b9a66"


def by_day(savings: Savings) -> Figure:
    """Plot what all jobs have saved, summed over the days up to today."""
    estimates = [day.saved.energy_kwh for day in savings.days]
    before = savings.saved.energy_kwh.estimate - sum(each.estimate for each in estimates)
    axes = new_layout("", "kWh saved")
    axes["yaxis"] |= {"rangemode": "normal", "zeroline": True}
    axes["xaxis"] |= {"type": "date"}
    days = [day.day for day in savings.days]
    data = _sums(days, estimates, before, _error(savings.saved.energy_kwh), "kWh", "%{x|%b %d}")
    note = "" if days else "No run has converged yet."
    if savings.estimated and days:
        note = "In part estimated: some meters estimate energy."
    return figure_of(data, axes, note, _in_words(savings.saved.energy_kwh))


def over_runs(savings: JobSavings) -> Figure:
    """Plot what a job has saved, summed over its runs."""
    points = [point for point in savings.points if point.saved is not None]
    axes = new_layout("run", "")
    if not points:
        note = "What a run of the default batch size takes is not known yet."
        return figure_of([], axes, note, "")
    estimates = [point.saved.energy_j for point in points if point.saved]
    totals = list(accumulate(each.estimate for each in estimates))
    factor, unit = unit_of(totals)
    numbers = [point.trial_number for point in points]
    end = savings.saved.energy_j.estimate if savings.saved else totals[-1]
    before = (end - totals[-1]) / factor  # saved by runs that were pruned
    over = [_over(each, factor) for each in estimates]
    error = _error(savings.saved.energy_j) / factor if savings.saved else None
    data = _sums(numbers, over, before, error, unit, "after run %{x}")
    axes["yaxis"]["title"]["text"] = f"energy saved ({unit})"
    axes["yaxis"] |= {"rangemode": "normal", "zeroline": True}
    only_integers(axes, numbers)
    basis = "runs of the default" if savings.basis == "runs" else "the belief about the default"
    note = f"Against {basis}, with a 95 % band."
    if savings.estimated:
        note += " Energy is estimated."
    note = f"{note} {what_is_summed(savings)}".rstrip()
    return figure_of(data, axes, note, f"Saved so far: {joules(end)}.")


def _sums(
    x: Sequence[object],
    estimates: Sequence[Estimate],
    before: float,
    error: float | None,
    unit: str,
    at: str,
) -> list[Figure]:
    """A line of cumulative sums with its band.

    Errors add up, since they have a common cause, and are scaled to that of the whole sum: jobs are
    independent, and what is expected has become surer.
    """
    if not x:
        return []
    middle = [before + each for each in accumulate(one.estimate for one in estimates)]
    errors = list(accumulate(map(_error, estimates)))
    if error is not None and errors[-1] > 0:
        errors = [each * error / errors[-1] for each in errors]
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
    ]


def _error(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2


def _over(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        estimate=estimate.estimate / factor, low=estimate.low / factor, high=estimate.high / factor
    )


def _in_words(kwh: Estimate) -> str:
    return f"Saved so far: {kwh.estimate:.3g} kWh, {kwh.low:.3g} to {kwh.high:.3g}."
