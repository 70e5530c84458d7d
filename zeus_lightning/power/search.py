"""Which power limit to measure next: a pure function of the points measured so far.

`sweep` measures every limit, from the highest down. `bracket` measures, depending on the selector:

- a selector with a `cost` (`Energy`, `ZeusCost`): limits around the minimum of the cost, see
  `bracket`;
- `Time`: only the highest limit, since no other is faster;
- `MaxSlowdown`: time falls as the limit rises, so bisection finds the lowest limit that is fast
  enough; the highest limit is measured first, for comparison;
- any other selector: every limit.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Literal

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
"""Relative error of the measured power and time of the same load at the same limit."""

BINDS = 0.8
"""A load is slowed down by a limit if its mean power is at least this fraction of the limit."""

_PHI = (1 + math.sqrt(5)) / 2

SearchName = Literal["bracket", "sweep"]
Search = Callable[[Sequence[PowerPoint]], int | None]
"""Takes the points measured so far, in any order; returns the next limit, None if they suffice.

It is stateless, so ranks that share their measurements agree on the next limit.
"""


def power_limits(min_w: int, max_w: int, step_w: int) -> tuple[int, ...]:
    """List the limits to choose from: the highest, and every `step_w` watts below it to `min_w`."""
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
    """Create a search over `limits_w` for the limit that `selector` would choose from all of them.

    Args:
        name: See the module's docstring.
        limits_w: In any order.
        selector: Chooses the limit when the search is done, with these inputs.
        inputs: Of the selector.
        start_w: The optimum that `bracket` expects, such as that of a similar batch size.
    """
    limits_w = sorted(limits_w)
    if name == "sweep":
        return partial(sweep, limits_w)
    if start_w is not None:
        expected_w = start_w
        start_w = min(limits_w, key=lambda limit: abs(limit - expected_w))
    if isinstance(selector, Time):
        return partial(sweep, limits_w[-1:])
    if isinstance(selector, MaxSlowdown):
        return partial(bisect, limits_w, factor=selector.factor, start_w=start_w)
    if isinstance(selector, CostSelector):
        num_gpus = inputs.max_power_w / limits_w[-1]
        cost = partial(selector.cost, inputs=inputs)
        return partial(bracket, limits_w, cost=cost, num_gpus=num_gpus, start_w=start_w)
    return partial(sweep, limits_w)


def sweep(limits_w: Sequence[int], points: Sequence[PowerPoint]) -> int | None:
    """Return the highest limit that is not measured yet."""
    measured = {point.limit_w for point in points}
    return max((limit for limit in limits_w if limit not in measured), default=None)


def bisect(
    limits_w: Sequence[int], points: Sequence[PowerPoint], factor: float, start_w: int | None = None
) -> int | None:
    """Search for the lowest limit whose time is within `factor` of the highest limit's.

    The highest limit is measured first, then `start_w` and the neighbour that would confirm it,
    then always the middle of the remaining limits. `limits_w` must be ascending.
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


def bracket(
    limits_w: Sequence[int],
    points: Sequence[PowerPoint],
    cost: Callable[[PowerPoint], float],
    num_gpus: float = 1.0,
    start_w: int | None = None,
) -> int | None:
    """Search for the limit of the lowest cost, assuming that the cost has one minimum.

    Without `start_w`, the highest limit is measured first, because savings are reported relative to
    it, and then the limit at the golden section of the range. With `start_w`, its neighbourhood is
    measured first, and the highest limit only when the search leads there.

    From then on, measured limits on either side of the cheapest one bracket the minimum. The next
    limit is the one inside the bracket with the lowest cost that a model of all points predicts
    (`_predict`); golden-section search would take the longer side. The search ends when no limit is
    left inside the bracket, or after log_phi(n) measurements, as many as golden-section search
    needs for n limits (n = 6 or 7: 4, n = 21: 6).

    Noise would distort two comparisons. Costs of neighbouring limits differ little, so only a limit
    `stride` places away, a seventh of the range, closes a side of the bracket. And above the limit
    that the load can use, the cost is flat: of limits with the same power within `NOISE`, only the
    lowest is considered.

    Args:
        limits_w: Ascending.
        points: Measured so far.
        cost: The cost of a point.
        num_gpus: Number of GPUs, each of which may draw as much as the limit.
        start_w: The one of the limits at which the optimum is expected.
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

    used = (1 - NOISE) * measured[max(measured)].power_w
    usable = min(limit for limit, point in measured.items() if point.power_w >= used)
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
        surely = measured[best].power_w / num_gpus  # lower limits slow the load down
        left = [limit for limit in left if limit < surely] or left
    predicted = _predict(limits_w[-1], list(measured.values()), num_gpus)
    return min(left, key=lambda limit: cost(predicted(limit)), default=None)


def _predict(
    highest_w: int, points: Sequence[PowerPoint], num_gpus: float
) -> Callable[[int], PowerPoint]:
    """Fit a model to the points, which predicts energy and time of a batch at a limit.

    Power follows the limit until the load can use no more: P = min(r L, P_free). Time has a part
    that depends on power and one that does not: T = t0 + t1 / P, fitted by least squares, so that
    energy is linear in power. If the points' powers hardly differ, they do not determine t1; a
    prior then draws t1 / P towards half of the time.
    """
    top = max(points, key=lambda point: point.limit_w)
    ratio = max(BINDS * num_gpus, *(p.power_w / p.limit_w for p in points))
    free_w = max(point.power_w for point in points)
    if top.limit_w < highest_w and top.power_w >= BINDS * ratio * top.limit_w:
        free_w = math.inf  # the load draws the highest limit measured, and may draw more
    inverse = [1 / point.power_w for point in points]
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
