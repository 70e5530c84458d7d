"""The six figures of a job, and what all jobs have saved, as Plotly's JSON.

`valley`, `costs`, `regret`, `saved`, `power` and `run` are pure functions of what the database
returned; `draw` reads it. The page's script adds the colours of text and grid, which depend on
whether the page is dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import Any

from sqlalchemy import Row

from zeus_service import optimizer
from zeus_service.api import savings_report
from zeus_service.api.messages import Estimate, Job, JobSavings, PowerProfile, Savings
from zeus_service.api.savings_text import energy_unit
from zeus_service.bandit.policy import ArmEstimate
from zeus_service.bandit.spec import JobSpec
from zeus_service.db import jobs, power_profiles, queries
from zeus_service.db.tables import Report
from zeus_service.pages.format import joules, runs, saved_energy, significant, words
from zeus_service.pages.plotting import (
    BAND,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    OUTCOMES,
    RED,
    Figure,
    band,
    batch_size_colours,
    dots,
    explain_batch_sizes,
    figure_of,
    fit_y_axis,
    grouped,
    label_at,
    line_at,
    marker,
    new_layout,
    only_integers,
    plain,
    rounded,
    shortened,
    ticks_at,
    unit_of,
    what_is_drawn,
)

FIGURES: dict[str, tuple[str, str]] = {
    "valley": (
        "Cost over batch size",
        "The estimate with its 95 % band, and each run by how it ended.",
    ),
    "costs": ("Cost of each run", "In order, coloured by batch size."),
    "regret": (
        "Cumulative regret",
        "What all runs, failed ones included, cost beyond the best batch size's expected cost.",
    ),
    "saved": (
        "Energy saved",
        "Against the default batch size at the GPU's default power limit; less while it explores.",
    ),
    "power": ("Power limits", "Energy and time of a training batch over the GPU's power limit."),
}
"""Title and explanation of each figure of a job's page, in the order in which they are shown."""

CURVE_POINTS = 400
"""Points of a sum over runs, at most: each takes 5 kB of memory to compute."""
_NOT_ENDED = "No run has ended yet."
_FEW_DAYS = timedelta(days=7)


def draw(job_id: str, name: str) -> Figure:
    """Read what a figure of `FIGURES` shows, and draw it."""
    job = Job.with_estimates(optimizer.get_job(job_id), {})
    figures: dict[str, Callable[[], Figure]] = {
        "valley": lambda: valley(job, queries.latest_trials(job_id)),
        "costs": lambda: costs(job, queries.latest_trials(job_id)),
        "regret": lambda: regret(job, _savings(job_id)),
        "saved": lambda: saved(_savings(job_id)),
        "power": lambda: power(job.spec, _profiles(job_id)),
    }
    return figures[name]()


def draw_run(job_id: str, trial_number: int) -> Figure:
    """Read the latest reports of a trial, and draw them."""
    spec = jobs.specification(optimizer.get_job(job_id))
    return run(spec, queries.latest_reports(job_id, trial_number))


def _savings(job_id: str) -> JobSavings:
    return savings_report.of_job(job_id, savings_report.Rates(), points=CURVE_POINTS)


def _profiles(job_id: str) -> list[PowerProfile]:
    found = power_profiles.list_profiles(job_id, None)
    return [PowerProfile.model_validate(profile) for profile in found]


def valley(job: Job, trials: Sequence[Row[Any]]) -> Figure:
    """Plot each batch size's estimated cost with its band, the runs, and the early-stop cost."""
    spec = job.spec
    known = [arm for arm in job.arms if arm.mean is not None]
    values = [row.cost for row in trials if row.cost > 0]
    values += [arm.mean for arm in known if arm.mean] + ([job.cost_bound] if job.cost_bound else [])
    factor, unit = unit_of(values)
    data = _estimates(known, factor, lowest=min(values, default=0.0) / 4)
    for outcome, rows in grouped(trials, lambda row: row.outcome):
        data.append(
            dots(words(outcome), rows, factor)
            | {"x": [_jittered(row) for row in rows], "marker": marker(outcome, 7)}
        )
    low_x, high_x = (math.log10(f(spec.batch_sizes)) for f in (min, max))
    pad = max(0.12, (high_x - low_x) * 0.06)
    if job.cost_bound:
        data.append(
            {"x": [10 ** (low_x - pad), 10 ** (high_x + pad)], "mode": "lines"}
            | {"y": rounded([job.cost_bound / factor] * 2), "name": "early stop"}
            | {"line": {"color": RED, "dash": "dash", "width": 1.5}}
            | {"hovertemplate": f"a run is stopped at {joules(job.cost_bound)}<extra></extra>"}
        )
    layout = new_layout("batch size", f"cost of a run ({unit})")
    fit_y_axis(layout, values)
    if values and "type" not in layout["yaxis"]:  # the band may reach far beyond all that was seen
        layout["yaxis"]["range"] = [0, float(f"{1.15 * max(values) / factor:.4g}")]
    layout["xaxis"] |= {
        "type": "log",
        "range": [low_x - pad, high_x + pad],
        **ticks_at(spec.batch_sizes),
    }
    layout["shapes"] = [line_at(spec.default_batch_size)]
    at = math.log10(spec.default_batch_size)
    layout["annotations"] = [label_at(at, "default", to_the_left=2 * at > low_x + high_x)]
    summary = f"Best batch size so far: {job.best_batch_size or 'not known yet'}."
    return figure_of(data, layout, _runs_drawn(job, trials), summary)


def _estimates(arms: Sequence[ArmEstimate], factor: float, *, lowest: float) -> list[Figure]:
    """The estimated cost of each arm and, where any has a spread, the band around them."""
    if not arms:
        return []
    sizes = [arm.batch_size for arm in arms]
    means = [arm.mean or 0.0 for arm in arms]
    errors = [BAND * (arm.spread or 0.0) for arm in arms]
    text = [f"{arm.batch_size}: {joules(arm.mean)}, {runs(arm.pulls)}" for arm in arms]
    line = (
        {"x": sizes, "y": rounded(mean / factor for mean in means), "name": "estimate"}
        | {"mode": "lines+markers", "line": {"color": BLUE, "width": 2.5}, "marker": {"size": 6}}
        | {"text": text, "hovertemplate": "estimate for %{text}<extra></extra>"}
    )
    if not any(errors):
        return [line]
    high = [(mean + wide) / factor for mean, wide in zip(means, errors, strict=True)]
    low = [max(mean - wide, lowest) / factor for mean, wide in zip(means, errors, strict=True)]
    return [band(sizes, low, high, BLUE) | {"name": "95 % band of the estimate"}, line]


def costs(job: Job, trials: Sequence[Row[Any]]) -> Figure:
    """Plot the cost of each run in order, coloured by batch size."""
    factor, unit = unit_of([row.cost for row in trials])
    colours = batch_size_colours(job.spec)
    data = [
        dots(str(batch_size), rows, factor)
        | {"x": [row.trial_number for row in rows]}
        | {"marker": {"size": 6, "color": colours.get(batch_size, GREY), "line": {"width": 1}}
           | {"symbol": [OUTCOMES.get(row.outcome, ("", "circle"))[1] for row in rows]}}
        for batch_size, rows in grouped(trials, lambda row: row.batch_size)
    ]  # fmt: skip
    layout = new_layout("run", f"cost ({unit})")
    fit_y_axis(layout, [row.cost for row in trials])
    note = f"{_runs_drawn(job, trials)} {explain_batch_sizes(layout, len(data))}".strip()
    only_integers(layout, [row.trial_number for row in trials])
    return figure_of(data, layout, note, f"{runs(len(trials))}.")


def _runs_drawn(job: Job, trials: Sequence[Row[Any]]) -> str:
    if not trials:
        return _NOT_ENDED
    # Runs that are in flight or were withdrawn are among the job's trials, but not drawn.
    return what_is_drawn(len(trials), job.trials, "runs") if len(trials) == queries.POINTS else ""


def regret(job: Job, savings: JobSavings) -> Figure:
    """Plot what the runs cost beyond the best batch size's expected cost, summed over them."""
    best = next((a.mean for a in job.arms if a.batch_size == job.best_batch_size), None)
    layout = new_layout("run", "")
    points = savings.points
    if best is None or not points:
        return figure_of([], layout, "The best batch size is not known yet.", "")
    sums = list(accumulate(point.spent.cost - point.recurrences * best for point in points))
    factor, unit = unit_of(sums)
    numbers = [point.trial_number for point in points]
    data = [
        {"x": numbers, "y": rounded(value / factor for value in sums), "showlegend": False}
        | {"mode": "lines" if len(numbers) > 1 else "markers", "fill": "tozeroy"}
        | {"line": {"color": ORANGE, "width": 2.5}, "fillcolor": f"{ORANGE}20"}
        | {"hovertemplate": "after run %{x}: %{y} " + unit + "<extra></extra>"}
    ]
    layout["yaxis"]["title"]["text"] = f"cumulative regret ({unit})"
    only_integers(layout, numbers)
    return figure_of(data, layout, _sums_drawn(savings), f"Regret so far: {joules(sums[-1])}.")


def saved(savings: JobSavings) -> Figure:
    """Plot what a job has saved, summed over its runs."""
    points = [point for point in savings.points if point.saved is not None]
    if not points or savings.saved is None:
        note = "What a run of the default batch size takes is not known yet."
        return figure_of([], new_layout("run", ""), note, "")
    numbers = [point.trial_number for point in points]
    estimates = [point.saved.energy_j for point in points if point.saved]
    total = savings.saved.energy_j
    data, unit = _saved_sums(numbers, estimates, total, "after run %{x}")
    layout = _saved_layout("run", unit)
    only_integers(layout, numbers)
    basis = "runs" if savings.basis == "runs" else "the estimate"
    note = f"Against {basis} of the default, with a 95 % band."
    if savings.estimated:
        note += " Energy is estimated."
    note = f"{note} {_sums_drawn(savings)}".rstrip()
    return figure_of(data, layout, note, f"Saved so far: {saved_energy(total.estimate)}.")


def saved_by_all(savings: Savings) -> Figure:
    """Plot what all jobs have saved, summed over the days up to today."""
    total, days = savings.saved.energy_j, [day.day for day in savings.days]
    estimates = [day.saved.energy_j for day in savings.days]
    data, unit = _saved_sums(days, estimates, total, "%{x|%b %d}")
    layout = _saved_layout("", unit)
    layout["xaxis"] |= {"type": "date"}
    if days:
        first, last = (date.fromisoformat(days[end]) for end in (0, -1))
        if last - first < _FEW_DAYS:  # plotly would have ticks within them
            day = timedelta(days=1)
            layout["xaxis"] |= {"range": [f"{first - day}", f"{last + day}"]}
            layout["xaxis"] |= {"dtick": 1000 * day.total_seconds(), "tickformat": "%b %d"}
    note = "In part estimated: some meters estimate energy." if savings.estimated else ""
    note = note if days else "No run has converged yet."
    low, middle, high = map(saved_energy, (total.low, total.estimate, total.high))
    return figure_of(data, layout, note, f"Saved so far: {middle}, {low} to {high}.")


def _saved_sums(
    x: Sequence[object], estimates: Sequence[Estimate], total: Estimate, at: str
) -> tuple[list[Figure], str]:
    """A line of sums that ends at the total, with its band; and their unit.

    Errors add up, since they have a common cause, and are scaled to the total's error: jobs are
    independent, and what is expected has become surer.
    """
    if not x:
        return [], "kWh"
    sums = list(accumulate(one.estimate for one in estimates))
    middle = [total.estimate - sums[-1] + each for each in sums]
    errors = list(accumulate(one.high - one.low for one in estimates))
    scale = (total.high - total.low) / 2 / errors[-1] if errors[-1] > 0 else 0.0
    factor, unit = energy_unit(max(map(abs, middle)))
    pairs = [(each, scale * error) for each, error in zip(middle, errors, strict=True)]
    low, high = ([(each + sign * error) / factor for each, error in pairs] for sign in (-1, 1))
    line = (
        {"x": list(x), "y": rounded(each / factor for each in middle), "showlegend": False}
        | {"mode": "lines" if len(x) > 1 else "markers"}
        | {"line": {"color": GREEN, "width": 2.5}, "marker": {"size": 8, "color": GREEN}}
        | {"hovertemplate": f"{at}: %{{y}} {unit}<extra></extra>"}
    )
    return [band(x, low, high, GREEN) | {"showlegend": False}, line], unit


def _saved_layout(x_title: str, unit: str) -> Figure:
    layout = new_layout(x_title, f"{unit} saved")
    layout["yaxis"] |= {"rangemode": "normal", "zeroline": True}
    return layout


def _sums_drawn(savings: JobSavings) -> str:
    """What a figure of sums says if a point has several runs."""
    count, last = len(savings.points), savings.points[-1].trial_number
    return f"Sums after {count:,} of {last:,} runs." if last > CURVE_POINTS else ""


def power(spec: JobSpec, profiles: Sequence[PowerProfile]) -> Figure:
    """Plot energy and time of a batch over the power limit, for each batch size and GPU model."""
    colours = batch_size_colours(spec)
    room = max(2, queries.POINTS // max(1, len(profiles)))
    shown = profiles[: queries.POINTS // room]
    several = len({profile.device_model for profile in profiles}) > 1
    data: list[Figure] = []
    for profile in shown:
        points = sorted(profile.points, key=lambda point: point.limit_w)
        points = points[:: -(-len(points) // room)]
        colour = colours.get(profile.batch_size, GREY)
        name = f"{profile.batch_size}{f' on {plain(profile.device_model)}' if several else ''}"
        for axis, field in (("", "energy_j"), ("2", "time_s")):
            data.append(
                {"x": [point.limit_w for point in points], "y": [getattr(p, field) for p in points]}
                | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "name": name, "legendgroup": name}
                | {"showlegend": not axis, "mode": "lines+markers"}
                | {"line": {"color": colour, "width": 2}}
                | {"marker": {
                    "color": colour,
                    "line": {"width": 0},
                    "size": [12 if p.limit_w == profile.chosen_w else 5 for p in points],
                    "symbol": ["star" if p.limit_w == profile.chosen_w else "circle"
                               for p in points]}}
                | {"hovertemplate": f"{name} at %{{x}} W: %{{y:.4g}}"
                   f" {'s' if axis else 'J'}<extra></extra>"}
            )  # fmt: skip
    layout = new_layout("power limit (W)", "energy of a batch (J)")
    second = new_layout("power limit (W)", "time of a batch (s)")
    layout["xaxis"]["domain"], second["xaxis"]["domain"] = [0, 0.44], [0.56, 1]
    layout |= {
        "xaxis2": {**second["xaxis"], "anchor": "y2"},
        "yaxis2": {**second["yaxis"], "anchor": "x2"},
    }
    count = len({profile.batch_size for profile in shown})
    note = f"The star is the limit that was chosen. {explain_batch_sizes(layout, count)}".rstrip()
    chosen = "; ".join(f"{each.batch_size} at {each.chosen_w} W" for each in shown[:8])
    if not profiles:
        note = "No power limits have been measured yet; ZeusPowerLimitCallback measures them."
    if len(shown) < len(profiles):
        note += f" The first {len(shown):,} of {len(profiles):,} profiles are drawn."
    return figure_of(data, layout, note, f"Chosen limits: {chosen}." if chosen else "")


def run(spec: JobSpec, reports: Sequence[Report]) -> Figure:
    """Plot the metric, the power and the cost of a trial over its epochs."""
    if not reports:
        return figure_of([], new_layout("epoch", ""), "It has not reported yet.", "")
    first, latest = reports[0], reports[-1]
    epochs = [row.epoch for row in reports]
    cost_factor, cost_unit = unit_of([row.cost for row in reports])
    powers, before = [], (0.0, 0.0)
    if first.sequence > 1:
        before = first.time_s, first.energy_j
    for row in reports:
        span_s = row.time_s - before[0]
        powers.append(float(f"{(row.energy_j - before[1]) / span_s:.6g}") if span_s else None)
        before = row.time_s, row.energy_j
    series: list[tuple[str, str, list[Any]]] = [
        (spec.monitor, BLUE, rounded(row.metric for row in reports)),
        ("power (W)", ORANGE, powers),
        (f"cost ({cost_unit})", GREEN, rounded(row.cost / cost_factor for row in reports)),
    ]
    layout = new_layout("epoch", "")
    layout |= {"grid": {"rows": 3, "columns": 1, "pattern": "coupled"}, "showlegend": False}
    data: list[Figure] = []
    for index, (name, colour, values) in enumerate(series, start=1):
        axis = "" if index == 1 else str(index)
        top = 1 - (index - 1) * 0.35
        layout[f"yaxis{axis}"] = {
            **new_layout("", shortened(name))["yaxis"],
            "domain": [max(0.0, top - 0.29), top],
        }
        data.append(
            {"x": epochs, "y": values, "yaxis": f"y{axis}", "name": plain(name)}
            | {"mode": "lines+markers" if len(reports) < 200 else "lines"}
            | {"line": {"color": colour, "width": 2}, "marker": {"size": 5}}
            | {"hovertemplate": f"epoch %{{x}}: %{{y}}<extra>{plain(name)}</extra>"}
        )
    across = [epochs[0], max(epochs[-1], epochs[0] + 1)]
    data.append(
        {"x": across, "y": [spec.target_metric] * 2, "yaxis": "y", "mode": "lines"}
        | {"line": {"color": GREEN, "dash": "dot", "width": 1.5}, "name": "target"}
        | {"hovertemplate": "target %{y:.5g}<extra></extra>"}
    )
    bounds = [row.cost_bound / cost_factor if row.cost_bound else None for row in reports]
    if any(bounds):
        data.append(
            {"x": epochs, "y": bounds, "yaxis": "y3", "mode": "lines", "name": "bound"}
            | {"line": {"color": RED, "dash": "dash", "width": 1.5}}
            | {"hovertemplate": "stopped past %{y:.4g}<extra></extra>"}
        )
    only_integers(layout, epochs)
    layout["xaxis"]["anchor"] = "y3"
    last = f"{plain(spec.monitor)} {significant(latest.metric)}"
    left_out = first.sequence - 1
    note = what_is_drawn(len(reports), len(reports) + left_out, "reports")
    return figure_of(data, layout, note, last)


def _jittered(row: Row[Any]) -> float:
    """A batch size moved by up to 4 %, so that runs of the same one are told apart."""
    offset = (row.trial_number * 0.618034) % 1 - 0.5
    return float(f"{row.batch_size * (1 + 0.08 * offset):.5g}")
