"""A run's mean power limit, and a batch's energy and time at another limit.

Energies are in joules, times in seconds, limits in watts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Profile = Sequence[Sequence[float]]
"""For each limit that was measured, ascending: its watts, and the joules and seconds of a batch."""

Profiles = Mapping[tuple[str, int], Profile]
"""What was measured with the default batch size, by the GPUs' model and number."""

LARGEST_RATIO = 1000.0
"""Between two limits, of energy or time: a profile with a larger ratio does not describe a GPU."""


def mean_limit(
    mean_w: float | None, before_s: float, limit_w: float | None, now_s: float
) -> float | None:
    """A trial's mean power limit over its time, after one more report.

    Between two reports, the limit of the later one counts.

    Args:
        mean_w: The mean before the report; None if it is unknown.
        before_s: The time of the report before; 0 if this is the first one.
        limit_w: The limit that is reported; None if it is unknown.
        now_s: The time of this report.

    Returns:
        None if the limit of any part of the trial is unknown.
    """
    if limit_w is None or not before_s:
        return limit_w
    share = min(before_s / now_s, 1.0) if now_s else 1.0
    return None if mean_w is None else mean_w + (1 - share) * (limit_w - mean_w)


def ratio(
    profile: Profile, limit_w: float | None, default_limit_w: float | None
) -> tuple[float, float]:
    """Energy and time of a batch at the default limit, divided by those at another limit.

    Between two points, energy and time are interpolated; beyond the last one they stay the same.

    Args:
        profile: What was measured; empty if nothing was.
        limit_w: The other limit; None if it is unknown.
        default_limit_w: The default limit; None if it is unknown.

    Returns:
        (1, 1) if a limit or the profile is unknown, or if a ratio or its inverse exceeds
        `LARGEST_RATIO`.
    """
    if not profile or limit_w is None or default_limit_w is None:
        return 1.0, 1.0
    watts, *amounts = zip(*profile, strict=True)
    pairs = [np.interp([limit_w, default_limit_w], watts, column).tolist() for column in amounts]
    if any(max(pair) > LARGEST_RATIO * min(pair) for pair in pairs):
        return 1.0, 1.0
    energy, time = (at_default / now for now, at_default in pairs)
    return energy, time
