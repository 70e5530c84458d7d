"""What all figures share: their form as Plotly's JSON, colours, units, notes on thinning."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import Row

from zeus_service.bandit.spec import JobSpec
from zeus_service.db.series import Thinned
from zeus_service.messages import JobSavings
from zeus_service.pages.units import joule_unit, joules, words

Figure = dict[str, Any]
"""`data` and `layout` of Plotly, `note`: what was left out or is missing, `summary`: in words."""

OUTCOMES = {
    "converged": ("#2b9a66", "circle"),
    "early_stopped": ("#e58a13", "x-thin-open"),
    "not_converged": ("#e5484d", "diamond"),
    "diverged": ("#d6409f", "star"),
    "out_of_memory": ("#8e4ec6", "square"),
    "interrupted": ("#8b8d98", "circle-open"),
    "errored": ("#8b8d98", "x-thin-open"),
    "lost": ("#8b8d98", "square-open"),
}
"""Colour and symbol of each outcome that is drawn."""
BELIEF = "#3b82f6"
BOUND = "#e5484d"
GREY = "#8b8d98"
BAND = 2.0
"""Standard deviations on each side of the mean: about 95 % of a normal distribution."""
_LOG_RATIO = 15.0
"""Costs that differ by more than this are drawn on a logarithmic axis."""
_DECADES = 3
"""Up to this many powers of ten, a logarithmic axis has ticks at 2 and 5 times each, too."""
_SMALLEST_TICK, _LARGEST_TICK = 1e-12, 1e12
CURVE_POINTS = 400
"""Of a curve of sums over runs, at most: to compute one takes 5 kB of memory."""
_LEGEND_ITEMS = 16
"""A legend of more batch sizes than these takes the place of the figure."""


def batch_size_colours(spec: JobSpec) -> dict[int, str]:
    """A colour for each batch size, from violet for the smallest to red for the largest."""
    last = max(1, len(spec.batch_sizes) - 1)
    found = {}
    for index, batch_size in enumerate(spec.batch_sizes):
        rgb = colorsys.hls_to_rgb((270 - 265 * index / last) / 360, 0.52, 0.68)
        found[batch_size] = "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
    return found


def figure_of(data: list[Figure], layout: Figure, note: str, summary: str) -> Figure:
    """A figure, as the page's script takes it.

    Plotly has prefixes from f to T and writes other powers of ten as superscripts, which need the
    inline styles that the page forbids: such an axis has exponents.
    """
    for trace in data:
        sizes = [abs(value) for value in trace["y"] if value]
        if sizes and not _SMALLEST_TICK < min(sizes) <= max(sizes) < _LARGEST_TICK:
            layout["yaxis" + trace.get("yaxis", "y")[1:]]["exponentformat"] = "e"
    return {"data": data, "layout": layout, "note": note, "summary": summary}


def plain(name: str) -> str:
    """A name that plotly shows as it is: it takes some markup in texts."""
    return html.escape(name, quote=False)


def shortened(name: str) -> str:
    """A name that fits the title of an axis."""
    return plain(name if len(name) <= 24 else f"{name[:23]}\N{HORIZONTAL ELLIPSIS}")


def new_layout(x_title: str, y_title: str) -> Figure:
    """A layout with two axes; the y axis begins at 0."""
    axis = {"automargin": True, "zeroline": False, "fixedrange": False}
    return {
        "margin": {"l": 56, "r": 12, "t": 12, "b": 44},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {**axis, "title": {"text": x_title}},
        "yaxis": {
            **axis,
            "title": {"text": y_title, "standoff": 8},
            "rangemode": "tozero",
        },
    }


def fit_y_axis(layout: Figure, values: Sequence[float]) -> None:
    """Make the y axis logarithmic if these values differ much."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > _LOG_RATIO * min(positive):
        few = max(positive) < 10**_DECADES * min(positive)
        layout["yaxis"] |= {"type": "log"} | ({"dtick": "D2"} if few else {})


def explain_batch_sizes(layout: Figure, count: int) -> str:
    """Show a legend of batch sizes, or return a note that replaces it if there are too many."""
    layout["legend"]["title"] = {"text": "batch size"}
    layout["showlegend"] = count <= _LEGEND_ITEMS
    if layout["showlegend"]:
        return ""
    return "From violet for the smallest batch size to red for the largest."


def dots(name: str, rows: Sequence[Row[Any]], factor: float) -> Figure:
    """A trace of trials, without their places on the x axis."""
    text = [
        f"run {row.trial_number}, batch size {row.batch_size}: {words(row.outcome)}, "
        f"{joules(row.cost)}"
        for row in rows
    ]
    return {
        "name": name,
        "mode": "markers",
        "y": rounded(row.cost / factor for row in rows),
        "text": text,
        "customdata": [row.trial_number for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
    }


def marker(outcome: str, size: int) -> Figure:
    """The colour and symbol of an outcome."""
    colour, symbol = OUTCOMES.get(outcome, (GREY, "circle-open"))
    width = 2 if "open" in symbol else 0
    return {"color": colour, "symbol": symbol, "size": size, "line": {"width": width}} | {
        "opacity": 0.75
    }


def only_integers(layout: Figure, numbers: Sequence[int]) -> None:
    """Only integers on the x axis, which has a few of them at least."""
    if not numbers:
        return
    if max(numbers) - min(numbers) < 10:
        layout["xaxis"] |= {"dtick": 1, "range": [min(numbers) - 0.5, max(numbers) + 0.5]}
    layout["xaxis"]["tickformat"] = ",d"


def grouped(
    rows: Iterable[Row[Any]], key: Callable[[Row[Any]], Any]
) -> list[tuple[Any, list[Row[Any]]]]:
    """Group rows by a key; outcomes in the order of `OUTCOMES`."""
    groups: dict[Any, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    known = {name: index for index, name in enumerate(OUTCOMES)}
    return sorted(groups.items(), key=lambda item: (known.get(item[0], 0), item[0]))


def unit_of(values: Sequence[float]) -> tuple[float, str]:
    """The unit for an axis of these joules."""
    return joule_unit(max(map(abs, values), default=1.0) / 2)


def rounded(values: Iterable[float]) -> list[float]:
    """Five significant digits: a page need not be sent more."""
    return [float(f"{value:.5g}") for value in values]


def what_is_thinned(series: Thinned, empty: str) -> str:
    """What a figure says of a thinned series, or of an empty one."""
    if not series.total:
        return empty
    return what_is_left_out(
        len(series.rows), series.total, f"{len(series.rows):,} of {series.total:,}, "
    )


def what_is_left_out(shown: int, total: int, text: str, kept: str = "extremes kept") -> str:
    """What a figure says of the points that were left out; nothing if none were."""
    return f"Thinned: {text}{kept}." if shown < total else ""


def what_is_summed(savings: JobSavings) -> str:
    """What a figure of sums over runs says of those that have no point of their own."""
    points, notes = savings.points, []
    if points[-1].trial_number > CURVE_POINTS:  # a point has several trials then
        last = f"{points[-1].trial_number:,}"
        notes.append(f"Thinned: sums after {len(points):,} of {last} runs.")
    if savings.spent.energy_j > 1.000001 * sum(point.spent.energy_j for point in points):
        notes.append("Earlier runs were pruned: the line begins at their sum.")
    return " ".join(notes)
