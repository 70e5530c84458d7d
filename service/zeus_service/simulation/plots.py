"""Regret, cost and choices over recurrences, and the page of figures that shows them.

The page needs no network: it contains plotly's JavaScript.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from zeus_service.simulation import SimulationError
from zeus_service.simulation.experiment import Key
from zeus_service.simulation.summary import Tally

Floats = npt.NDArray[np.float64]

_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518")
_HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>zeus-service simulate</title>
</head><body>"""


@dataclass(frozen=True)
class Curves:
    """All replays of one workload with one policy.

    Args:
        batch_sizes: The job's, ascending.
        cost: Over the oracle's; (replays, recurrences), nan after a replay's last recurrence.
        regret: Sum of the costs above the oracle's, in runs of the best batch size; same shape.
        chosen: The share of replays whose first try had a batch size; (batch sizes, recurrences).
    """

    workload: str
    gpu: str
    policy: str
    batch_sizes: list[int]
    cost: Floats
    regret: Floats
    chosen: Floats


def curves(tallies: Sequence[Tally]) -> list[Curves]:
    """The curves of each workload, GPU and policy, in the order in which they first appear."""
    groups: dict[Key, list[Tally]] = {}
    for each in tallies:
        groups.setdefault(each.key, []).append(each)
    return [_curves(*key, group) for key, group in groups.items()]


def _curves(workload: str, gpu: str, policy: str, tallies: list[Tally]) -> Curves:
    batch_sizes = list(tallies[0].batch_sizes)
    length = max(len(each.costs) for each in tallies)
    cost = np.full((len(tallies), length), np.nan)
    chosen = np.zeros((len(batch_sizes), length))
    for index, each in enumerate(tallies):
        cost[index, : len(each.costs)] = np.divide(each.costs, each.oracle_costs)
        for recurrence, batch_size in enumerate(each.first_tries):
            if batch_size:
                chosen[batch_sizes.index(batch_size), recurrence] += 1
    present = np.count_nonzero(~np.isnan(cost), axis=0)
    regret = np.cumsum(cost - 1, axis=1)
    return Curves(workload, gpu, policy, batch_sizes, cost, regret, chosen / present)


def write_page(file: TextIO, all_curves: Sequence[Curves]) -> None:
    """Write a page with one figure for each workload and GPU."""
    groups = groupby(all_curves, key=lambda one: (one.workload, one.gpu))
    figures = [
        figure(list(group)).to_html(full_html=False, include_plotlyjs=number == 0)
        for number, (_, group) in enumerate(groups)
    ]
    file.write("\n".join([_HEAD, *figures, "</body></html>"]))


def figure(policies: Sequence[Curves]) -> Any:
    """Cumulative regret, cost and choices of the policies on one workload: a plotly figure.

    Lines are means over the replays, bands contain the middle 80 % of them.
    """
    from plotly import graph_objects, subplots

    titles = [
        "Cumulative regret (runs of the best batch size)",
        "Cost of each recurrence, over the oracle's",
        *(f"First try of each recurrence, {one.policy}" for one in policies),
    ]
    spacing = 0.2 / len(titles)
    figure = subplots.make_subplots(
        rows=len(titles), cols=1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=spacing
    )
    for index, one in enumerate(policies):
        colour = _COLOURS[index % len(_COLOURS)]
        for row, values in ((1, one.regret), (2, one.cost)):
            for trace in _line(one.policy, colour, values, legend=row == 1):
                figure.add_trace(trace, row=row, col=1)
        heat = graph_objects.Heatmap(
            z=one.chosen,
            x=list(range(1, one.chosen.shape[1] + 1)),
            y=[str(size) for size in one.batch_sizes],
            zmin=0,
            zmax=1,
            colorscale=[[0, "#ffffff"], [1, colour]],
            showscale=False,
            hovertemplate="recurrence %{x}: batch size %{y} in %{z:.0%}<extra></extra>",
        )
        figure.add_trace(heat, row=3 + index, col=1)
        figure.update_yaxes(type="category", title="batch size", row=3 + index, col=1)
    figure.update_yaxes(type="log", row=2, col=1)
    figure.update_xaxes(title="recurrence", row=len(titles), col=1)
    title = f"{policies[0].workload} on {policies[0].gpu}"
    figure.update_layout(title=title, height=280 * len(titles), template="plotly_white")
    return figure


def _line(name: str, colour: str, values: Floats, *, legend: bool) -> list[Any]:
    from plotly import graph_objects

    recurrences = list(range(1, values.shape[1] + 1))
    low, high = np.nanpercentile(values, [10, 90], axis=0)
    band = graph_objects.Scatter(
        x=[*recurrences, *reversed(recurrences)],
        y=[*high, *reversed(low)],
        fill="toself",
        fillcolor=colour,
        opacity=0.2,
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        legendgroup=name,
    )
    mean = graph_objects.Scatter(
        x=recurrences,
        y=np.nanmean(values, axis=0),
        name=name,
        mode="lines",
        line={"color": colour},
        legendgroup=name,
        showlegend=legend,
    )
    return [band, mean]


def require_plotly() -> None:
    """Raise a `SimulationError` if plotly is not installed."""
    if find_spec("plotly") is None:  # it is in the extra `analysis`
        raise SimulationError("figures need plotly: pip install plotly")
