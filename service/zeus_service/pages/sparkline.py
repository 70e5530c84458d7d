"""The latest costs of a job as a small line, in SVG."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT, MARGIN = 120, 28, 3


def sparkline(values: Sequence[float]) -> str:
    """The `points` of a polyline, from zero at the bottom to the highest value at the top."""
    scale = (HEIGHT - 2 * MARGIN) / (max(values, default=0.0) or 1.0)
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    base = HEIGHT - MARGIN
    return " ".join(
        f"{MARGIN + index * step:.1f},{base - value * scale:.1f}"
        for index, value in enumerate(values)
    )
