"""Which power limit to measure next.

It depends on the selector:

- `energy`, `zeus-cost`: the limit that may be the cheapest, see `information.py`;
- `time`: only the highest limit, since no other is faster;
- `MaxSlowdown`: time falls as the limit rises, so bisection finds the lowest limit that is fast
  enough; the highest limit is measured first, for comparison;
- any other selector: every limit once, from the highest down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Protocol

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.information import Information
from zeus_lightning.power.selectors import (
    MaxSlowdown,
    PowerPoint,
    Selector,
    SelectorInputs,
    ZeusCost,
)


class Search(Protocol):
    """Chooses limits to measure; it has no state, so ranks with the same windows agree."""

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> int | None:
        """Return the limit to measure next, or None if the windows suffice.

        Args:
            windows: What was measured so far, in order, but for the run's first window, which is
                used for nothing; a limit may occur several times.
            windows_left: Length of the rest of the run, in windows with their warm-up; infinite if
                unknown.
        """

    def estimates(self, windows: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
        """Return the best estimate for each limit that was measured, of which there is one.

        By default, that is the mean of the limit's windows; limits are in the order of their first.
        """
        by_limit: dict[int, list[PowerPoint]] = {}
        for window in windows:
            by_limit.setdefault(window.limit_w, []).append(window)
        return tuple(
            PowerPoint(
                limit_w, fmean(one.energy_j for one in group), fmean(one.time_s for one in group)
            )
            for limit_w, group in by_limit.items()
        )


def power_limits(min_w: int, max_w: int, step_w: int) -> tuple[int, ...]:
    """List the limits to choose from: the highest, and every `step_w` watts below it to `min_w`."""
    if not 0 < step_w <= max_w - min_w:
        raise ZeusConfigError(
            f"step_w is {step_w!r}; it must be at least 1 and at most {max_w - min_w}, "
            f"the range of this GPU's power limit ({min_w} to {max_w} W)"
        )
    return tuple(range(max_w, min_w - 1, -step_w))


def make_search(limits_w: Sequence[int], selector: Selector, inputs: SelectorInputs) -> Search:
    """Create a search over `limits_w` for the limit that `selector` would choose from all of them.

    Args:
        limits_w: In any order.
        selector: Chooses the limit when the search is done, with these inputs.
        inputs: Of the selector.
    """
    limits_w = tuple(sorted(limits_w))
    if selector == ZeusCost(0):
        return Sweep(limits_w[-1:])
    if isinstance(selector, MaxSlowdown):
        return Bisection(limits_w, selector.factor)
    if isinstance(selector, ZeusCost):
        cost = partial(selector.cost, inputs=inputs)
        return Information(limits_w, cost, inputs.max_power_w / limits_w[-1])
    return Sweep(limits_w)


@dataclass(frozen=True)
class Sweep(Search):
    """Measure every limit once, from the highest down."""

    limits_w: tuple[int, ...]

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> int | None:  # noqa: ARG002
        """Return the highest limit that is not measured yet."""
        measured = {window.limit_w for window in windows}
        left = [limit for limit in self.limits_w if limit not in measured]
        return max(left, default=None)


@dataclass(frozen=True)
class Bisection(Search):
    """Search for the lowest limit whose time is within `factor` of the highest limit's.

    The highest limit is measured first, then always the middle of the remaining limits. `limits_w`
    must be ascending.
    """

    limits_w: tuple[int, ...]
    factor: float

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> int | None:  # noqa: ARG002
        """Return the limit that narrows down the search."""
        time_s = {point.limit_w: point.time_s for point in self.estimates(windows)}
        highest = self.limits_w[-1]
        if highest not in time_s:
            return highest
        fast = min(limit for limit in time_s if time_s[limit] <= self.factor * time_s[highest])
        slow = max((limit for limit in time_s if limit < fast), default=0)
        left = [limit for limit in self.limits_w if slow < limit < fast]
        return left[len(left) // 2] if left else None
