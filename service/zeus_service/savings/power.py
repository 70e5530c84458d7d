"""What power limits change: the limit of a run, and what a batch takes at another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zeus_service.bandit.stopping import Report

MAX_POINTS = 32
LARGEST_RATIO = 1000.0
"""Between two limits, of energy or time: a profile with a larger one is of no GPU."""


def of_run(trial: Any, report: Report) -> tuple[float | None, float | None]:
    """A trial's mean power limit over its time, with one more report, and the GPUs' default one.

    Between two reports, the limit counts that is in force at the later one.

    Args:
        trial: Before the report.
        report: Its next one.
    """
    limit_w, mean_w = report.power_limit_w, trial.power_limit_w
    if limit_w is not None and trial.reports:
        before = min(trial.time_s / report.time_s, 1.0) if report.time_s else 1.0
        limit_w = None if mean_w is None else mean_w + (1 - before) * (limit_w - mean_w)
    return limit_w, report.default_power_limit_w


def thinned(points: Sequence[Any]) -> list[list[float]]:
    """Watts, joules and seconds of measured limits, ascending: `MAX_POINTS` at most."""
    rows = sorted([point.limit_w, point.energy_j, point.time_s] for point in points)
    step = -(-(len(rows) - 1) // (MAX_POINTS - 1)) or 1
    return [*rows[:-1:step], rows[-1]]


def ratio(
    points: Sequence[Sequence[float]], limits_w: Sequence[float] | None
) -> tuple[float, float] | None:
    """Energy and time of a batch at the default limit, over those at the limit in force.

    Args:
        points: As `thinned` returns them; values between them are interpolated.
        limits_w: The limit in force and the default one.

    Returns:
        None without points or limits, or if one of them is larger than `LARGEST_RATIO`, or its
        inverse is.
    """
    if not points or limits_w is None:
        return None
    watts, *amounts = zip(*points, strict=True)
    at = [np.interp(limits_w, watts, column).tolist() for column in amounts]
    if any(max(both) > LARGEST_RATIO * min(both) for both in at):
        return None
    energy, time = (default / in_force for in_force, default in at)
    return energy, time
