"""What a search for a power limit answers: the limit to measure next, and what for."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from zeus_lightning.power.selectors import PowerPoint


@dataclass(frozen=True, slots=True)
class Proposal:
    """The limit to measure next, and what its window is expected to be worth.

    Args:
        limit_w: The limit.
        saves: What the window is expected to save over the rest of the run, as a multiple of the
            cost of a window at the limit that seems best; None if the search does not estimate it.
        costs: By how much the window is expected to cost more than one at that limit, likewise.
    """

    limit_w: int
    saves: float | None = None
    costs: float | None = None


class Search(Protocol):
    """Chooses limits to measure; it has no state, so ranks with the same windows agree."""

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> Proposal | None:
        """Return the limit to measure next, or None if the windows suffice.

        Args:
            windows: What was measured so far, in order; a limit may occur several times.
            windows_left: Length of the rest of the run, in windows with their warm-up.
        """

    def estimates(self, windows: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
        """Return the best estimate for each limit that was measured, of which there is one.

        By default, that is the mean of the limit's windows; limits are in the order of their first.
        """
        of_limit: dict[int, list[PowerPoint]] = {}
        for window in windows:
            of_limit.setdefault(window.limit_w, []).append(window)
        return tuple(
            PowerPoint(
                limit_w, fmean(one.energy_j for one in group), fmean(one.time_s for one in group)
            )
            for limit_w, group in of_limit.items()
        )
