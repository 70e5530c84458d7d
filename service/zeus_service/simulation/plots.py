"""The page of figures of a simulation: each policy's cumulative regret over the recurrences."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from zeus_service.simulation.experiment import Tally, by_key

Floats = npt.NDArray[np.float64]

_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518")
_HEAD = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>zeus-service simulate</title>
"""


def relative_costs(tallies: Sequence[Tally]) -> Floats:
    """The cost of each recurrence over the oracle's.

    Returns:
        (replays, recurrences), nan after a replay's last recurrence.
    """
    costs = np.full((len(tallies), max(len(each.costs) for each in tallies)), np.nan)
    for row, each in zip(costs, tallies, strict=True):
        row[: len(each.costs)] = np.divide(each.costs, each.oracle_costs)
    return costs


def write_page(file: TextIO, tallies: Sequence[Tally]) -> None:
    """Write a page with a figure for each workload and GPU; it needs no network."""
    complete = [each for each in tallies if not each.none_left]
    curves = {key: relative_costs(group) for key, group in by_key(complete).items()}
    file.write(_HEAD)
    for number, (names, keys) in enumerate(groupby(curves, key=lambda key: key[:2])):
        page = figure(" on ".join(names), {key.policy: curves[key] for key in keys})
        file.write(page.to_html(full_html=False, include_plotlyjs=number == 0))


def figure(title: str, policies: Mapping[str, Floats]) -> Any:
    """The cumulative regret of the policies: a plotly figure.

    Lines are means over the replays, bands contain the middle 80 % of them.
    """
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for index, (policy, costs) in enumerate(policies.items()):
        regret = np.cumsum(costs - 1, axis=1)
        recurrences = list(range(1, regret.shape[1] + 1))
        low, high = np.nanpercentile(regret, [10, 90], axis=0)
        style = {"line_color": _COLOURS[index % len(_COLOURS)], "legendgroup": policy}
        figure.add_scatter(
            x=recurrences + recurrences[::-1],
            y=[*high, *reversed(low)],
            fill="toself",
            opacity=0.4,
            line_width=0,
            hoverinfo="skip",
            showlegend=False,
            **style,
        )
        figure.add_scatter(x=recurrences, y=np.nanmean(regret, axis=0), name=policy, **style)
    figure.update_layout(
        title=f"{title}: cumulative regret",
        xaxis_title="recurrence",
        yaxis_title="runs of the best batch size",
        template="plotly_white",
    )
    return figure
