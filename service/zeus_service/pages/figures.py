"""The figures of a job and a run as Plotly's JSON: traces and a layout, without the page's colours.

They are pure functions of what the database returned. The page's script adds the colours of text
and grid, which depend on whether it is dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import Row

from zeus_service.bandit.spec import JobSpec
from zeus_service.db.series import MAX_POINTS, BatchSizeTrials, Thinned
from zeus_service.messages import Job, JobSavings, PowerProfileList
from zeus_service.pages.plotting import (
    BAND,
    BELIEF,
    BOUND,
    GREY,
    OUTCOMES,
    Figure,
    batch_size_colours,
    dots,
    explain_batch_sizes,
    figure_of,
    fit_y_axis,
    grouped,
    marker,
    new_layout,
    only_integers,
    plain,
    rounded,
    shortened,
    unit_of,
    what_is_left_out,
    what_is_summed,
    what_is_thinned,
)
from zeus_service.pages.units import joules, runs, significant, words

NOT_ENDED = "No run has ended yet."
PRUNED = "The runs that have ended were pruned."
"""What a figure without runs says."""


def valley(job: Job, trials: BatchSizeTrials, empty: str = NOT_ENDED) -> Figure:
    """Plot the belief about the cost of each batch size with its band, the runs, and the bound."""
    spec = job.spec
    known = [arm for arm in job.arms if arm.mean is not None]
    values = [row.cost for row in trials.latest if row.cost > 0]
    values += [arm.mean for arm in known if arm.mean] + ([job.cost_bound] if job.cost_bound else [])
    factor, unit = unit_of(values)
    data: list[Figure] = []
    if any(arm.spread for arm in known):
        sizes = [arm.batch_size for arm in known]
        low = [max(_spread(arm, -BAND), min(values, default=0) / 4) / factor for arm in known]
        high = [_spread(arm, BAND) / factor for arm in known]
        outline = {"x": [*sizes, *sizes[::-1]], "y": rounded([*high, *low[::-1]])}
        data.append(
            {**outline, "fill": "toself", "fillcolor": f"{BELIEF}2e", "mode": "lines"}
            | {"line": {"width": 0}, "hoverinfo": "skip", "name": "95 % band of the belief"}
        )
    if known:
        text = [f"{arm.batch_size}: {joules(arm.mean)}, {runs(arm.pulls)}" for arm in known]
        data.append(
            {"x": [arm.batch_size for arm in known], "mode": "lines+markers", "text": text}
            | {"y": rounded((arm.mean or 0) / factor for arm in known), "name": "belief"}
            | {"line": {"color": BELIEF, "width": 2.5}, "marker": {"size": 6}}
            | {"hovertemplate": "belief for %{text}<extra></extra>"}
        )
    for outcome, rows in grouped(trials.latest, lambda row: row.outcome):
        data.append(
            dots(words(outcome), rows, factor)
            | {"x": [_jittered(row) for row in rows], "marker": marker(outcome, 7)}
        )
    for group in trials.groups if trials.total > len(trials.latest) else ():
        if group.outcome in OUTCOMES:  # they may be among no others
            of = f"extreme of batch size %{{x}}, {words(group.outcome)}: %{{y}} {unit}"
            data.append(
                {"x": [group.batch_size] * 2, "showlegend": False, "mode": "markers"}
                | {"y": rounded([group.lowest / factor, group.highest / factor])}
                | {"marker": {**marker(group.outcome, 11), "symbol": "line-ew-open"}}
                | {"hovertemplate": f"{of}<extra></extra>"}
            )
    low_x, high_x = (math.log10(f(spec.batch_sizes)) for f in (min, max))
    pad = max(0.12, (high_x - low_x) * 0.06)
    if job.cost_bound:
        data.append(
            {"x": [10 ** (low_x - pad), 10 ** (high_x + pad)], "mode": "lines"}
            | {"y": rounded([job.cost_bound / factor] * 2), "name": "early stop"}
            | {"line": {"color": BOUND, "dash": "dash", "width": 1.5}}
            | {"hovertemplate": f"a run is stopped at {joules(job.cost_bound)}<extra></extra>"}
        )
    layout = new_layout("batch size", f"cost of a run ({unit})")
    fit_y_axis(layout, values)
    if values and "type" not in layout["yaxis"]:  # the band may reach far beyond all that was seen
        layout["yaxis"]["range"] = [0, float(f"{1.15 * max(values) / factor:.4g}")]
    layout["xaxis"] |= {
        "type": "log",
        "range": [low_x - pad, high_x + pad],
        **_ticks(spec.batch_sizes),
    }
    layout["shapes"] = [_line_at(spec.default_batch_size)]
    at = math.log10(spec.default_batch_size)
    layout["annotations"] = [_label_at(at, "default", to_the_left=2 * at > low_x + high_x)]
    shown = len(trials.latest)
    latest = f"the latest {shown:,} of {trials.total:,} runs, and the "
    note = what_is_left_out(shown, trials.total, latest, "extremes of each batch size")
    summary = f"Best batch size so far: {job.best_batch_size or 'not known yet'}."
    return figure_of(data, layout, note if trials.total else empty, summary)


def costs(spec: JobSpec, trials: Thinned, empty: str = NOT_ENDED) -> Figure:
    """Plot the cost of each run in order, coloured by batch size."""
    factor, unit = unit_of([row.cost for row in trials.rows])
    colours = batch_size_colours(spec)
    data = [
        dots(str(batch_size), rows, factor)
        | {"x": [row.trial_number for row in rows]}
        | {"marker": {"size": 6, "color": colours.get(batch_size, GREY), "line": {"width": 1}}
           | {"symbol": [OUTCOMES.get(row.outcome, ("", "circle"))[1] for row in rows]}}
        for batch_size, rows in grouped(trials.rows, lambda row: row.batch_size)
    ]  # fmt: skip
    layout = new_layout("run", f"cost ({unit})")
    fit_y_axis(layout, [row.cost for row in trials.rows])
    note = what_is_thinned(trials, empty)
    note = f"{note} {explain_batch_sizes(layout, len(data))}".strip()
    only_integers(layout, [row.trial_number for row in trials.rows])
    summary = f"{runs(trials.total)}."
    return figure_of(data, layout, note, summary)


def regret(job: Job, savings: JobSavings) -> Figure:
    """Plot what the runs cost beyond the best batch size's expected cost, summed over them."""
    best = next((a.mean for a in job.arms if a.batch_size == job.best_batch_size), None)
    layout = new_layout("run", "")
    points = savings.points
    if best is None:
        return figure_of([], layout, "The best batch size is not known yet.", "")
    if not points:
        return figure_of([], layout, PRUNED, "")
    excess = list(accumulate(point.spent.cost - point.recurrences * best for point in points))
    end = savings.spent.cost - savings.recurrences * best
    before = end - excess[-1]  # of runs that were pruned
    excess = [before + value for value in excess]
    factor, unit = unit_of(excess)
    numbers = [point.trial_number for point in points]
    data = [
        {"x": numbers, "y": rounded(value / factor for value in excess), "showlegend": False}
        | {"mode": "lines" if len(numbers) > 1 else "markers", "fill": "tozeroy"}
        | {"line": {"color": "#e58a13", "width": 2.5}, "fillcolor": "#e58a1320"}
        | {"hovertemplate": "after run %{x}: %{y} " + unit + "<extra></extra>"}
    ]
    layout["yaxis"]["title"]["text"] = f"cumulative regret ({unit})"
    only_integers(layout, numbers)
    note = what_is_summed(savings)
    return figure_of(data, layout, note, f"Regret so far: {joules(excess[-1])}.")


def power(spec: JobSpec, found: PowerProfileList) -> Figure:
    """Plot energy and time of a batch over the power limit, for each batch size and GPU model."""
    profiles = found.profiles
    colours = batch_size_colours(spec)
    room = MAX_POINTS // 2 // max(1, len(profiles))
    shown = profiles[: MAX_POINTS // 4] if room < 2 else profiles
    several = len({profile.device_model for profile in profiles}) > 1
    data: list[Figure] = []
    for profile in shown:
        points = sorted(profile.points, key=lambda point: point.limit_w)
        points = points[:: max(1, -(-len(points) // max(2, room)))]
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
    if found.broken:
        sizes = ", ".join(map(str, sorted(set(found.broken))))
        note += f" Damaged profiles are left out: of batch size {sizes}."
    elif not profiles:
        note = "No power limits have been measured yet; ZeusPowerLimitCallback measures them."
    if len(shown) < len(profiles):
        note += f" The first {len(shown):,} of {len(profiles):,} profiles are drawn."
    return figure_of(data, layout, note, f"Chosen limits: {chosen}." if chosen else "")


def run(spec: JobSpec, reports: Thinned) -> Figure:
    """Plot the metric, the power and the cost of a trial over its epochs."""
    rows = reports.rows
    if not rows:
        return figure_of([], new_layout("epoch", ""), "It has not reported yet.", "")
    epochs = [row.epoch for row in rows]
    cost_factor, cost_unit = unit_of([row.cost for row in rows])
    powers, before = [], (0.0, 0.0)
    for row in rows:
        span_s = row.time_s - before[0]
        powers.append(float(f"{(row.energy_j - before[1]) / span_s:.6g}") if span_s else None)
        before = row.time_s, row.energy_j
    series: list[tuple[str, str, list[Any]]] = [
        (spec.monitor, BELIEF, rounded(row.metric for row in rows)),
        ("power (W)", "#e58a13", powers),
        (f"cost ({cost_unit})", "#2b9a66", rounded(row.cost / cost_factor for row in rows)),
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
            | {"mode": "lines+markers" if len(rows) < 200 else "lines"}
            | {"line": {"color": colour, "width": 2}, "marker": {"size": 5}}
            | {"hovertemplate": f"epoch %{{x}}: %{{y}}<extra>{plain(name)}</extra>"}
        )
    across = [epochs[0], max(epochs[-1], epochs[0] + 1)]
    data.append(
        {"x": across, "y": [spec.target_metric] * 2, "yaxis": "y", "mode": "lines"}
        | {"line": {"color": "#2b9a66", "dash": "dot", "width": 1.5}, "name": "target"}
        | {"hovertemplate": "target %{y:.5g}<extra></extra>"}
    )
    bounds = [row.cost_bound / cost_factor if row.cost_bound else None for row in rows]
    if any(bounds):
        data.append(
            {"x": epochs, "y": bounds, "yaxis": "y3", "mode": "lines", "name": "bound"}
            | {"line": {"color": BOUND, "dash": "dash", "width": 1.5}}
            | {"hovertemplate": "stopped past %{y:.4g}<extra></extra>"}
        )
    only_integers(layout, epochs)
    layout["xaxis"]["anchor"] = "y3"
    last = f"{plain(spec.monitor)} {significant(rows[-1].metric)}"
    return figure_of(data, layout, what_is_thinned(reports, ""), last)


def _line_at(batch_size: int) -> Figure:
    return {"type": "line", "x0": batch_size, "x1": batch_size, "y0": 0, "y1": 1} | {
        "yref": "paper",
        "line": {"color": GREY, "dash": "dot", "width": 1.5},
        "layer": "below",
    }


def _label_at(x: float, text: str, *, to_the_left: bool) -> Figure:
    return {"x": x, "y": 1, "yref": "paper", "yanchor": "top", "text": text, "showarrow": False} | {
        "xanchor": "right" if to_the_left else "left",
        "xshift": -3 if to_the_left else 3,
    }


def _ticks(batch_sizes: Sequence[int]) -> Figure:
    """Ticks at batch sizes, as many as do not overlap on a logarithmic axis."""
    apart = (batch_sizes[-1] / batch_sizes[0]) ** (1 / 10)
    shown: list[int] = []
    for size in batch_sizes:
        if not shown or size >= apart * shown[-1]:
            shown.append(size)
    return {"tickvals": shown, "ticktext": list(map(str, shown))}


def _jittered(row: Row[Any]) -> float:
    """A batch size moved by up to 4 %, so that runs of the same one are told apart."""
    offset = (row.trial_number * 0.618034) % 1 - 0.5
    return float(f"{row.batch_size * (1 + 0.08 * offset):.5g}")


def _spread(arm: Any, deviations: float) -> float:
    return float(arm.mean + deviations * (arm.spread or 0.0))
