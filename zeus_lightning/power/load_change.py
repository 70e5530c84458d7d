"""A load that changes in mid-run: notice it at the end of an epoch, and check the limit again.

Sequences grow, or layers are unfrozen: then another limit may be best. The time of a batch over
whole epochs shows it without a measurement. If it has moved by more than the noise, one window at
the chosen limit shows whether the GPU's load has changed, or only the loading of data, for example.
If the load has changed, the search goes on; what was measured before is that of a similar load.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import pvariance

from zeus_lightning.power.proposal import Proposal, Search
from zeus_lightning.power.selectors import PowerPoint

TOLERANCE = 0.05
"""Relative change of the time of a batch that is not noise, at least."""


@dataclass
class EpochTimes:
    """Compares the time of a batch in each epoch with that in the first one after the last change.

    Args:
        noise: Relative standard deviation of the time of a batch from window to window.
    """

    noise: float
    _first_s: float | None = field(default=None, init=False)

    @property
    def tolerance(self) -> float:
        """The change that is taken for noise."""
        return max(TOLERANCE, 3 * self.noise)

    def has_moved(self, batch_time_s: float) -> bool:
        """Add an epoch; return whether its batches take another time than before."""
        if self._first_s is None:
            self._first_s = batch_time_s
            return False
        if abs(math.log(batch_time_s / self._first_s)) <= self.tolerance:
            return False
        self._first_s = None
        return True


@dataclass
class Stopwatch:
    """The time of a batch over an epoch, without its validations.

    Args:
        now_s: Returns the time in seconds.
    """

    now_s: Callable[[], float]
    _time_s: float = field(default=0.0, init=False)
    _batches: int = field(default=0, init=False)
    _started: tuple[float, int] | None = field(default=None, init=False)
    _is_used: bool = field(default=False, init=False)  # in this epoch

    def reset(self, *, use: bool) -> None:
        """Forget the last epoch; `use` tells whether to time the new one."""
        self._time_s, self._batches, self._started, self._is_used = 0.0, 0, None, use

    def start(self, batches: int) -> None:
        """Go on, after so many batches of the run, if the epoch is timed."""
        if self._is_used:
            self._started = self.now_s(), batches

    def stop(self, batches: int) -> None:
        """Pause, after so many batches of the run; without effect if it is paused."""
        if self._started is not None:
            since_s, before = self._started
            self._time_s += self.now_s() - since_s
            self._batches += batches - before
            self._started = None

    @property
    def batch_time_s(self) -> float:
        """The mean time of a batch; NaN if none was timed."""
        return self._time_s / self._batches if self._batches and self._time_s > 0 else math.nan


@dataclass(frozen=True)
class Check(Search):
    """Measure the chosen limit once, and search on if the load under it has changed.

    Args:
        chosen: What was measured of the chosen limit before.
        tolerance: Relative change of time or power that is taken for noise.
        search: How to search on.
    """

    chosen: PowerPoint
    tolerance: float
    search: Search

    def propose(self, windows: Sequence[PowerPoint], windows_left: float) -> Proposal | None:
        """Return the chosen limit, then None if nothing has changed there."""
        if not windows:
            return Proposal(self.chosen.limit_w)
        first = windows[0]
        changes = (first.time_s / self.chosen.time_s, first.power_w / self.chosen.power_w)
        if all(abs(math.log(change)) <= self.tolerance for change in changes):
            return None
        return self.search.propose(windows, windows_left)

    def estimates(self, windows: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
        """Return the search's estimates."""
        return self.search.estimates(windows)


def time_noise(windows: Sequence[PowerPoint]) -> float:
    """Return the relative standard deviation of the times of a limit's windows; 0 if unknown."""
    logs: dict[int, list[float]] = {}
    for window in windows:
        logs.setdefault(window.limit_w, []).append(math.log(window.time_s))
    freedom = sum(len(each) - 1 for each in logs.values())
    squares = math.fsum(len(each) * pvariance(each) for each in logs.values())
    return math.sqrt(squares / freedom) if freedom else 0.0
