"""A figure of what each recurrence has cost, try by try."""

from collections.abc import Sequence
from typing import Any


def page(tries: Sequence[dict[str, Any]]) -> str:
    """Draw the rows of `summary.rows` as HTML that works offline: tries stacked, by batch size."""
    from plotly.graph_objects import Figure

    measured = [row for row in tries if row["cost_j"] is not None]
    figure = Figure()
    sizes = sorted({row["batch_size"] for row in measured})
    for control in (True, False):
        for size in sizes:
            group = [r for r in measured if (r["batch_size"], r["control"]) == (size, control)]
            if group:
                figure.add_bar(
                    x=[row["recurrence"] for row in group],
                    y=[row["cost_j"] for row in group],
                    name=f"{size}{', control' * control}",
                    marker_pattern_shape="/" if control else "",
                    marker_opacity=[1.0 if row["verdict"] == "done" else 0.5 for row in group],
                    hovertext=[
                        f"try {row['try']}: {row['outcome']}, {row['epochs']} epochs, "
                        f"{row['energy_j']:.1f} J, {row['time_s']:.1f} s"
                        for row in group
                    ],
                )
    figure.update_layout(
        barmode="stack",
        title="Cost of each recurrence; paler: tries that failed",
        xaxis_title="recurrence",
        yaxis_title="cost (J)",
        legend_title="batch size",
    )
    return str(figure.to_html(include_plotlyjs=True))
