"""Parts of Plotly figures: traces, lines and axes."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from zeus_service.api.text import words
from zeus_service.bandit.spec import JobSpec
from zeus_service.db.tables import Trial
from zeus_service.units import ENERGIES, energy, fitting_unit

Figure = dict[str, Any]
"""`data` and `layout` of Plotly, `note`: what was left out or is missing, and maybe a `title` that
says what it shows."""

Window = tuple[float, float]
"""The lowest and the highest cost that a figure shows."""

GREY = "#8b8d98"
BLUE = "#3b82f6"
GREEN = "#2b9a66"
ORANGE = "#e58a13"
RED = "#e5484d"
SPECTRUM = (
    *((124, 58, 237), (37, 99, 235), (8, 171, 197), (34, 145, 74)),
    *((178, 140, 0), (236, 110, 20), (195, 25, 55)),
)
"""From violet to red, in steps that look alike; evenly spaced hues have too many greens."""


def empty(note: str) -> Figure:
    """A figure without data, and why it has none."""
    return {"data": [], "layout": {}, "note": note}


def over_runs(
    numbers: Sequence[int], title: str, traces: Sequence[Figure], note: str = "", **layout: Any
) -> Figure:
    """A figure of energies over the numbers of runs."""
    axes = {"xaxis": number_axis("run", numbers), "yaxis": energy_axis(title, traces)}
    return {"data": traces, "layout": {**axes, "showlegend": False, **layout}, "note": note}


def curve(name: str, x: Sequence[int], y: Sequence[float | None], colour: str) -> Figure:
    """A trace of points that are joined by lines."""
    return {
        "name": name,
        "x": x,
        "y": y,
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2.5},
        "marker": {"size": 3},
        "hovertemplate": f"{name} at %{{x}}: %{{y}}<extra></extra>",
    }


def _clip(cost: float, symbol: str, window: Window) -> tuple[float, str]:
    """Where a cost is drawn, and with which symbol: an arrow at the edge if it lies beyond."""
    low, high = window
    if cost > high:
        return high, "triangle-up"
    return (low, "triangle-down") if cost < low else (cost, symbol)


def dots(
    name: str,
    x: Sequence[int],
    trials: Sequence[Trial],
    colour: str,
    symbols: Sequence[str],
    window: Window = (-math.inf, math.inf),
) -> Figure:
    """A trace of trials; the script opens the one that is clicked.

    The first of the symbols is the legend's. Plotly shows that of a first point, so there is one
    that is not drawn.
    """
    texts = [
        f"run {trial.trial_number}, batch size {trial.batch_size}: {words(trial.outcome)}, "
        f"{energy(trial.cost)}"
        for trial in trials
    ]
    pairs = zip(trials, symbols[1:], strict=True)
    clipped = [_clip(trial.cost, symbol, window) for trial, symbol in pairs]
    return {
        "name": name,
        "mode": "markers",
        "x": [None, *x],
        "y": [None, *(cost for cost, _ in clipped)],
        "hovertext": ["", *texts],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "customdata": [None, *(trial.trial_number for trial in trials)],
        "marker": {
            "color": colour,
            "symbol": [symbols[0], *(symbol for _, symbol in clipped)],
            "size": 7,
        },
        "cliponaxis": False,
    }


def line(at: float, colour: str, name: str) -> Figure:
    """A line across the first row of a figure, at a height, named in the legend."""
    ends = {"x0": 0, "x1": 1, "xref": "x domain", "y0": at, "y1": at}
    style = {"color": colour, "dash": "dash", "width": 1.5}
    return {"type": "line", "name": name, "showlegend": True, **ends, "line": style}


def axis(title: str, **settings: Any) -> Figure:
    """An axis with a title."""
    return {"title": {"text": title}, **settings}


def energy_axis(title: str, traces: Sequence[Figure]) -> Figure:
    """An axis in the unit that fits some traces, whose joules are converted to it."""
    largest = max((abs(y) for trace in traces for y in trace["y"] if y is not None), default=0.0)
    unit, size = fitting_unit(largest, ENERGIES)
    for trace in traces:
        trace["y"] = [None if y is None else y / size for y in trace["y"]]
    return axis(title, ticksuffix=f" {unit}", hoverformat=".3~r")


def log_energy_axis(title: str, window: Window) -> Figure:
    """A logarithmic axis of joules over a window, with a few ticks in each decade."""
    smallest = "J" if window[1] < ENERGIES["Wh"] else "Wh"
    units = {unit: size for unit, size in ENERGIES.items() if size >= ENERGIES[smallest]}
    low, high = (math.log10(end / units[smallest]) for end in window)
    steps = (1, 1.5, 2, 3, 5, 7) if high - low < 1 else (1, 2, 5) if high - low < 2 else (1,)
    powers = range(math.floor(low), math.ceil(high))
    ticks = [step * 10.0**power * units[smallest] for power in powers for step in steps]
    fitting = [(tick, *fitting_unit(tick, units)) for tick in ticks]
    texts = [f"{tick / size:,g} {unit}" for tick, unit, size in fitting]
    ends = [math.log10(end) for end in window]
    return axis(title, type="log", range=ends, tickvals=ticks, ticktext=texts)


def number_axis(title: str, numbers: Sequence[int]) -> Figure:
    """An axis with ticks at integers alone."""
    are_close = max(numbers, default=0) - min(numbers, default=0) < 10
    return axis(title, tickformat=",d", **({"dtick": 1} if are_close else {}))


def plain(name: str) -> str:
    """A name that plotly shows as it is: it takes some markup in texts."""
    return html.escape(name, quote=False)


def batch_size_colours(spec: JobSpec) -> dict[int, str]:
    """A colour for each batch size, from violet for the smallest to red for the largest."""
    last = len(SPECTRUM) - 1
    places = np.linspace(0, last, len(spec.batch_sizes))
    parts = [np.interp(places, range(last + 1), part) for part in zip(*SPECTRUM, strict=True)]
    return {
        batch_size: "#" + "".join(f"{round(part[index]):02x}" for part in parts)
        for index, batch_size in enumerate(spec.batch_sizes)
    }


def what_is_drawn(shown: int, total: int, of_what: str) -> str:
    """What a figure says of the points that were left out; nothing if none were."""
    return f"Showing the latest {shown:,} of {total:,} {of_what}." if shown < total else ""
