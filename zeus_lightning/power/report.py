"""What a person is told of measured power limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO

from zeus_lightning.power.selectors import PowerPoint


def line(point: PowerPoint) -> str:
    """One measured limit, in a line."""
    return (
        f"{point.limit_w} W: {point.energy_j:.4g} J and {1e3 * point.time_s:.4g} ms a batch, "
        f"{point.energy_j / point.time_s:.4g} W on average"
    )


def figures(point: PowerPoint) -> dict[str, float]:
    """One limit, for the Trainer's loggers."""
    return {
        "zeus/power_limit_w": float(point.limit_w),
        "zeus/step_power_w": point.energy_j / point.time_s,
        "zeus/step_energy_j": point.energy_j,
    }


def saving(points: Sequence[PowerPoint], chosen_w: int) -> str:
    """What the chosen limit saves against the highest one measured, in a sentence."""
    highest = max(points, key=lambda point: point.limit_w)
    chosen = next(point for point in points if point.limit_w == chosen_w)
    if chosen is highest:
        return f"{chosen_w} W, the highest limit measured"
    return (
        f"{chosen_w} W: energy {_change(chosen.energy_j, highest.energy_j)} and time "
        f"{_change(chosen.time_s, highest.time_s)} against {highest.limit_w} W"
    )


def table(
    points: Sequence[PowerPoint],
    chosen_w: int,
    chosen_by: str,
    cost: Callable[[PowerPoint], float] | None = None,
) -> str:
    """All measured limits, the chosen one marked, and its saving, as text of 80 columns.

    Args:
        points: What was measured.
        chosen_w: The limit of one of them.
        chosen_by: Name of the selector.
        cost: What a batch costs, in joules.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    highest = max(points, key=lambda point: point.limit_w)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("limit (W)", "J/batch", "ms/batch", "power (W)", "energy", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    if cost is not None:
        table.add_column("cost (J)", justify="right", no_wrap=True)
    for point in sorted(points, key=lambda point: -point.limit_w):
        cells = [
            f"{'* ' * (point.limit_w == chosen_w)}{point.limit_w}",
            f"{point.energy_j:.4g}",
            f"{1e3 * point.time_s:.4g}",
            f"{point.energy_j / point.time_s:.4g}",
            _change(point.energy_j, highest.energy_j),
            _change(point.time_s, highest.time_s),
        ]
        if cost is not None:
            cells.append(f"{cost(point):.4g}")
        table.add_row(*cells)
    text = StringIO()
    Console(file=text, width=80, no_color=True).print(table)
    return f"{text.getvalue().rstrip()}\n  * chosen by {chosen_by}: {saving(points, chosen_w)}"


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.1f} %"
