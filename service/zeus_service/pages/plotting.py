"""What all figures share: their form as Plotly's JSON, colours, units and notes."""

from __future__ import annotations

import colorsys
import html
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from zeus_service.bandit.spec import JobSpec
from zeus_service.pages.format import joule_unit, joules, words

Figure = dict[str, Any]
"""`data` and `layout` of Plotly, `note`: what was left out or is missing, `summary`: in words."""

PLOTLY = Path(str(distribution("plotly").locate_file("plotly/package_data/plotly.min.js")))
"""Plotly's JavaScript, in the package; found without importing that."""

BLUE = "#3b82f6"
GREEN = "#2b9a66"
ORANGE = "#e58a13"
RED = "#e5484d"
GREY = "#8b8d98"
OUTCOMES = {
    "converged": (GREEN, "circle"),
    "early_stopped": (ORANGE, "x-thin-open"),
    "not_converged": (RED, "diamond"),
    "diverged": ("#d6409f", "star"),
    "out_of_memory": ("#8e4ec6", "square"),
    "interrupted": (GREY, "circle-open"),
    "errored": (GREY, "x-thin-open"),
    "lost": (GREY, "square-open"),
}
"""Colour and symbol of each outcome that is drawn."""
BAND = 2.0
"""Standard deviations on each side of the mean: about 95 % of a normal distribution."""
_LOG_RATIO = 15.0
"""Costs that differ by more than this are drawn on a logarithmic axis."""
_DECADES = 3
"""Up to this many powers of ten, a logarithmic axis also has ticks at 2 and 5 times each."""
_SMALLEST_TICK, _LARGEST_TICK = 1e-12, 1e12
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


def what_is_drawn(shown: int, total: int, of_what: str) -> str:
    """What a figure says of the points that were left out; nothing if none were."""
    return f"The latest {shown:,} of {total:,} {of_what}." if shown < total else ""


def ticks_at(batch_sizes: Sequence[int]) -> Figure:
    """Ticks at batch sizes, as many as do not overlap on a logarithmic axis."""
    apart = (batch_sizes[-1] / batch_sizes[0]) ** (1 / 10)
    shown: list[int] = []
    for size in batch_sizes:
        if not shown or size >= apart * shown[-1]:
            shown.append(size)
    return {"tickvals": shown, "ticktext": list(map(str, shown))}


def band(x: Sequence[object], low: Sequence[float], high: Sequence[float], colour: str) -> Figure:
    """An area from `low` to `high`."""
    return {"x": [*x, *reversed(x)], "y": rounded([*high, *reversed(low)]), "fill": "toself"} | {
        "fillcolor": f"{colour}2e",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def line_at(batch_size: int) -> Figure:
    """A line through the figure at a batch size."""
    return {"type": "line", "x0": batch_size, "x1": batch_size, "y0": 0, "y1": 1} | {
        "yref": "paper",
        "line": {"color": GREY, "dash": "dot", "width": 1.5},
        "layer": "below",
    }


def label_at(x: float, text: str, *, to_the_left: bool) -> Figure:
    """A label at the top of the figure, on one side of a place on the x axis."""
    return {"x": x, "y": 1, "yref": "paper", "yanchor": "top", "text": text, "showarrow": False} | {
        "xanchor": "right" if to_the_left else "left",
        "xshift": -3 if to_the_left else 3,
    }
