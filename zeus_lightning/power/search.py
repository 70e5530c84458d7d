"""Which power limit to measure next: a pure function of the points measured so far.

`sweep` measures every limit, from the highest down. `golden` measures few, and how depends on what
is selected:

- a cost (`Energy`, `ZeusCost`, any selector with a `cost`): its valley is bracketed, see `golden`;
- `Time`: the highest limit alone is measured, for no other can be faster;
- `MaxSlowdown`: time falls as the limit rises, so the lowest limit that is fast enough is found by
  bisection, after the highest, which is what it is compared with;
- another selector: nothing is known of it, so every limit is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Literal, get_args

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.selectors import (
    CostSelector,
    MaxSlowdown,
    PowerPoint,
    Selector,
    SelectorInputs,
    Time,
)

NOISE = 0.02
"""What powers and times of the same load at the same limit may differ by, as a fraction."""

BINDS = 0.8
"""A limit holds a load back where its mean power is at least this fraction of the limit."""

_PHI = (1 + math.sqrt(5)) / 2

SearchName = Literal["golden", "sweep"]
Search = Callable[[Sequence[PowerPoint]], int | None]
"""Takes the points measured so far, in any order; gives the next limit, None when they suffice.

It remembers nothing, so ranks that share their measurements agree on the next limit, and a
search that was broken off goes on from its points.
"""


def power_limits(min_w: int, max_w: int, step_w: int) -> tuple[int, ...]:
    """The limits to choose from: the highest and every `step_w` below it, down to `min_w`.

    Args:
        min_w: The lowest settable limit, rounded up to whole watts.
        max_w: The highest, rounded down.
        step_w: Watts between two limits. `min_w` is among the limits only where it is on a step.

    Returns:
        Descending, all in [min_w, max_w].

    Raises:
        ZeusConfigError: The step is not positive, or larger than the range.
    """
    if not 0 < step_w <= max_w - min_w:
        raise ZeusConfigError(
            f"step_w is {step_w!r}; it must be at least 1 and at most {max_w - min_w}, "
            f"the range of this GPU's power limit ({min_w} to {max_w} W)"
        )
    return tuple(range(max_w, min_w - 1, -step_w))


def make_search(
    name: SearchName,
    limits_w: Sequence[int],
    selector: Selector,
    inputs: SelectorInputs,
    start_w: int | None = None,
) -> Search:
    """A search over `limits_w` for the limit that `selector` would choose of all of them.

    Args:
        name: "sweep" or "golden".
        limits_w: What may be set, in any order.
        selector: What is searched for.
        inputs: Of the selector.
        start_w: Where the optimum is expected: that of the nearest batch size already profiled
            for this job and GPU model. `sweep` takes no notice.

    Raises:
        ZeusConfigError: There is no search of this name.
    """
    if name not in get_args(SearchName):
        names = " or ".join(f'"{known}"' for known in get_args(SearchName))
        raise ZeusConfigError(f"search is {name!r}; it must be {names}")
    limits_w = sorted(limits_w)
    if start_w is not None:
        start_w = _nearest(limits_w, start_w)
    if name == "golden" and isinstance(selector, Time):
        return partial(sweep, limits_w[-1:])
    if name == "golden" and isinstance(selector, MaxSlowdown):
        return partial(bisect, limits_w, factor=selector.factor, start_w=start_w)
    if name == "golden" and isinstance(selector, CostSelector):
        watts = inputs.max_power_w / limits_w[-1]
        cost = partial(selector.cost, inputs=inputs)
        return partial(golden, limits_w, cost=cost, watts_per_limit=watts, start_w=start_w)
    return partial(sweep, limits_w)


def sweep(limits_w: Sequence[int], points: Sequence[PowerPoint]) -> int | None:
    """The highest limit that is not measured yet."""
    measured = {point.limit_w for point in points}
    return max((limit for limit in limits_w if limit not in measured), default=None)


def bisect(
    limits_w: Sequence[int], points: Sequence[PowerPoint], factor: float, start_w: int | None = None
) -> int | None:
    """Look for the lowest limit whose time is within `factor` of the highest limit's.

    The highest is measured first, then `start_w` and the limit beside it that would confirm it,
    then always the middle of what is left.

    Args:
        limits_w: Ascending.
        points: Measured so far.
        factor: As `MaxSlowdown.factor`.
        start_w: One of the limits, where the answer is expected.
    """
    time_s = {point.limit_w: point.time_s for point in points}
    highest = limits_w[-1]
    if highest not in time_s:
        return highest
    fast = min(limit for limit in time_s if time_s[limit] <= factor * time_s[highest])
    slow = max((limit for limit in time_s if limit < fast), default=0)
    left = [limit for limit in limits_w if slow < limit < fast]
    if not left:
        return None
    if start_w in left:
        return start_w
    if start_w in (slow, fast) and len(points) == 2:
        return left[0] if start_w == slow else left[-1]
    return left[len(left) // 2]


def golden(
    limits_w: Sequence[int],
    points: Sequence[PowerPoint],
    cost: Callable[[PowerPoint], float],
    watts_per_limit: float = 1.0,
    start_w: int | None = None,
) -> int | None:
    """Look for the limit of the lowest cost, whose curve over the limit has one valley.

    Cold, the highest limit is measured first, because savings are told against it, and then the
    one at the golden section of the range. From `start_w`, the optimum of a like batch size, its
    surroundings are looked at first, and the highest limit only when the search leads there.

    From then on the valley lies between measured limits on either side of the cheapest, and the
    next is the one in between whose cost a model of all points predicts to be the lowest
    (`_predict`). Golden-section search would take the longer side, however little is to be won
    there. It ends when nothing is left in between, at the latest after log_phi(n) windows, as many
    as golden-section search takes to single out one of n limits (n = 6 or 7: 4, n = 21: 6).

    Noise would mislead comparisons of costs in two places. Of limits close to each other: so only
    one that is `stride` places away, a seventh of the range, closes a side. And where the curve is
    flat, above the limit that the load can use, but there the power tells: of limits that draw the
    same power within `NOISE` only the lowest is considered.

    Args:
        limits_w: Ascending.
        points: Measured so far.
        cost: Of a point.
        watts_per_limit: GPUs: the watts that all of them may draw, for each watt of the limit.
        start_w: One of the limits, where the answer is expected.

    Returns:
        The next limit, None when enough are measured.
    """
    n = len(limits_w)
    measured = {point.limit_w: point for point in points if point.limit_w in limits_w}
    if len(measured) >= min(n, max(3, round(math.log(n, _PHI)))):
        return None
    first = limits_w[-1] if start_w is None else start_w
    if first not in measured:
        return first
    if start_w is None and len(measured) == 1:
        return limits_w[round((n - 1) / _PHI**2)]

    used = (1 - NOISE) * _power_w(measured[max(measured)])
    usable = min(limit for limit, point in measured.items() if _power_w(point) >= used)
    best = min((limit for limit in measured if limit <= usable), key=lambda w: cost(measured[w]))
    stride = max(1, round(n / _PHI**4))
    place = {limit: number - limits_w.index(best) for number, limit in enumerate(limits_w)}
    below = max((place[limit] for limit in measured if place[limit] <= -stride), default=-n)
    above = min((place[limit] for limit in measured if place[limit] >= stride), default=n)
    if best == usable < max(measured):
        above = 0
    if best == start_w:
        below, above = max(below, -stride - 1), min(above, stride + 1)
    left = [limit for limit in limits_w if below < place[limit] < above and limit not in measured]
    if best == usable < max(measured):
        surely = _power_w(measured[best]) / watts_per_limit  # a limit below it holds the load back
        left = [limit for limit in left if limit < surely] or left
    predicted = _predict(limits_w[-1], list(measured.values()), watts_per_limit)
    return min(left, key=lambda limit: cost(predicted(limit)), default=None)


def _predict(
    highest_w: int, points: Sequence[PowerPoint], watts_per_limit: float
) -> Callable[[int], PowerPoint]:
    """A model of the points: what a batch is expected to take at a limit.

    Power follows the limit until the load can use no more: P = min(r L, P_free). Time is a part
    that does not depend on power and one that does: T = t0 + t1 / P, least squares over the
    points, so that energy is a straight line over power. Where the points' powers hardly differ, t1
    cannot be told from them; there it leans to half of the time.
    """
    top = max(points, key=lambda point: point.limit_w)
    ratio = max(BINDS * watts_per_limit, *(_power_w(p) / p.limit_w for p in points))
    free_w = max(_power_w(point) for point in points)
    if top.limit_w < highest_w and _power_w(top) >= BINDS * ratio * top.limit_w:
        free_w = math.inf  # the load uses all of the highest limit measured, and may use more
    inverse = [1 / _power_w(point) for point in points]
    mean_x, mean_t = fmean(inverse), fmean(point.time_s for point in points)
    half = mean_t / mean_x / 2
    weight = (NOISE * mean_x) ** 2
    covariance = sum(
        (x - mean_x) * (point.time_s - mean_t) for x, point in zip(inverse, points, strict=True)
    )
    variance = sum((x - mean_x) ** 2 for x in inverse)
    t1 = min(max((covariance + weight * half) / (variance + weight), 0.0), 2 * half)

    def predicted(limit_w: int) -> PowerPoint:
        power_w = min(ratio * limit_w, free_w)
        time_s = mean_t + t1 * (1 / power_w - mean_x)
        return PowerPoint(limit_w, power_w * time_s, time_s)

    return predicted


def _nearest(limits_w: Sequence[int], limit_w: int) -> int:
    return min(limits_w, key=lambda limit: (abs(limit - limit_w), limit))


def _power_w(point: PowerPoint) -> float:
    return point.energy_j / point.time_s
