"""Summaries of measured power limits: sentences, tables, figures for the loggers."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from zeus_lightning.power.selectors import PowerPoint


def describe(point: PowerPoint) -> str:
    """Describe one measured limit in a line."""
    return (
        f"{point.limit_w} W: {point.energy_j:.4g} J and {1e3 * point.time_s:.4g} ms a batch, "
        f"{point.power_w:.4g} W on average"
    )


def metrics(point: PowerPoint) -> dict[str, float]:
    """Return what loggers get about one measured limit."""
    return {
        "zeus/power_limit_w": float(point.limit_w),
        "zeus/step_power_w": point.power_w,
        "zeus/step_energy_j": point.energy_j,
    }


def saving(points: Sequence[PowerPoint], chosen_w: int) -> str:
    """Describe what the chosen limit saves, compared with the highest one measured."""
    highest = max(points, key=lambda point: point.limit_w)
    chosen = next(point for point in points if point.limit_w == chosen_w)
    if chosen is highest:
        return f"{chosen_w} W, the highest limit measured"
    return (
        f"{chosen_w} W, with energy {_change(chosen.energy_j, highest.energy_j)} and time "
        f"{_change(chosen.time_s, highest.time_s)} relative to {highest.limit_w} W"
    )


def table(points: Sequence[PowerPoint], chosen_w: int, chosen_by: str) -> str:
    """Format all measured limits, the chosen one and what it saves, as text of 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    highest = max(points, key=lambda point: point.limit_w)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("limit (W)", "J/batch", "ms/batch", "power (W)", "energy", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in sorted(points, key=lambda point: -point.limit_w):
        table.add_row(
            f"{'* ' * (point.limit_w == chosen_w)}{point.limit_w}",
            f"{point.energy_j:.4g}",
            f"{1e3 * point.time_s:.4g}",
            f"{point.power_w:.4g}",
            _change(point.energy_j, highest.energy_j),
            _change(point.time_s, highest.time_s),
        )
    text = StringIO()
    Console(file=text, width=80, no_color=True).print(table)
    return f"{text.getvalue().rstrip()}\n  * chosen by {chosen_by}: {saving(points, chosen_w)}"


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.1f} %"
