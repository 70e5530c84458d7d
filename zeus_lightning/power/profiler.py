"""The profiler: decides which batches are measured at which power limit; a pure state machine.

It takes events of training and returns actions, without a clock, GPUs or ranks: all ranks run it in
step on the same events, and their measurements are merged (`merge`) before they are passed to it.
So all ranks set the same limit before the same batch.

A limit is set; `warmup_steps` batches pass, in which power and clocks settle; then a *window* of
whole batches is measured. The search's first batch is never measured, because it may compile the
model or try algorithms. An interruption (the end of an epoch, a validation, a checkpoint)
discards the open window and restarts the warm-up, because the batches after it are different.

**Length of a window.** `profile_steps` batches, or more so that it lasts `min_seconds`. The first
window is used for nothing: a data loader that starts, or a library that tries its algorithms, may
have slowed it down. The second one, at the same limit, measures the time of a batch; if it was too
short, it is used for nothing else, and a longer one follows. Then the length is fixed.

**Short epochs.** After `MAX_LOST_WINDOWS` interruptions without a whole window, windows are
shortened to the longest one that was interrupted, as long as they still last `min_seconds`. If even
that does not fit, or a window is disturbed `MAX_LOST_WINDOWS` times, profiling is given up. So it
always ends.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.search import Search
from zeus_lightning.power.selectors import PowerPoint

MAX_LOST_WINDOWS = 3
"""Number of windows lost in a row after which windows are shortened, or profiling is given up."""


class Disturbance(IntEnum):
    """What makes a window useless; if ranks differ, the largest value counts."""

    NONE = 0
    UNREADABLE = 1  # no, or no plausible, reading of energy or time
    NOT_SET = 2  # the driver refused the limit, or its record could not be written
    LIMIT_CHANGED = 3  # the current limit is not the one that was set here
    GPU_LOST = 4  # the driver cannot reach the GPU any more


DESCRIPTIONS = {
    Disturbance.UNREADABLE: "a GPU's energy or time could not be read",
    Disturbance.NOT_SET: "a GPU's power limit could not be set",
    Disturbance.LIMIT_CHANGED: "someone else changed a GPU's power limit",
    Disturbance.GPU_LOST: "a GPU was lost",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What one rank measured over a window, or all ranks together; meaningless when disturbed."""

    energy_j: float
    time_s: float
    disturbance: Disturbance = Disturbance.NONE


def merge(windows: Sequence[Window]) -> Window:
    """Merge the windows of all ranks, each for its own GPUs, over the same batches.

    Returns:
        The sum of the energies, the slowest rank's time, and the worst disturbance. A reading that
        is not positive and finite is a disturbance.
    """
    worst = max(window.disturbance for window in windows)
    if not all(0 < value < math.inf for w in windows for value in (w.energy_j, w.time_s)):
        worst = max(worst, Disturbance.UNREADABLE)
    if worst:
        return Window(math.nan, math.nan, worst)
    energy_j = math.fsum(window.energy_j for window in windows)
    time_s = max(window.time_s for window in windows)
    return Window(energy_j, time_s)


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set every GPU to `limit_w`."""

    limit_w: int


@dataclass(frozen=True, slots=True)
class StartWindow:
    """Read energy and time here, and discard an older reading."""


@dataclass(frozen=True, slots=True)
class EndWindow:
    """Read energy and time here, merge over ranks, and call `Profiler.measured`."""


@dataclass(frozen=True, slots=True)
class Done:
    """Profiling is over.

    Args:
        limit_w: The limit for the rest of the run, or None to restore those found at the start.
        reason: Why profiling was given up, as part of a sentence; empty when it was not.
    """

    limit_w: int | None
    reason: str = ""


Action = SetLimit | StartWindow | EndWindow | Done


@dataclass(frozen=True)
class ProfilerSettings:
    """Arguments of `ZeusPowerLimitCallback` of these names; `warmup_steps` also follow a pause."""

    step_w: int = 25
    warmup_steps: int = 10
    profile_steps: int = 40
    min_seconds: float = 2.0

    def __post_init__(self) -> None:
        least = {"step_w": 1, "warmup_steps": 0, "profile_steps": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < minimum:
                rule = f"it must be an integer, {minimum} or more"
                raise ZeusConfigError(f"{name} is {value!r}; {rule}")
        seconds = self.min_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds < math.inf:
            raise ZeusConfigError(f"min_seconds is {seconds!r}; it must be a number, 0 or more")


class Profiler:
    """The state machine that the module's docstring describes.

    Every method returns the actions to perform now, in order; after `Done` there are none.

    Args:
        search: Proposes the limit to measure next, see `make_search`.
        select: Returns the limit to choose from the search's estimates when it is done.
        settings: How to profile.
        batches: Training batches until the end of the run; infinite if unknown.

    Attributes:
        windows: What was measured, in order, without the windows that are used for nothing.
        points: The search's estimates, when it has chosen.
        limit_w: The limit being measured; None before the first, and when profiling is over.
        window_steps: Number of batches in a window.
        done: How profiling ended; None before that.
    """

    def __init__(
        self,
        search: Search,
        select: Callable[[Sequence[PowerPoint]], int],
        settings: ProfilerSettings,
        batches: float = math.inf,
    ) -> None:
        self.windows: list[PowerPoint] = []
        self.points: tuple[PowerPoint, ...] = ()
        self.limit_w: int | None = None
        self.window_steps = settings.profile_steps
        self.done: Done | None = None
        self._search = search
        self._select = select
        self._settings = settings
        self._batches = batches
        self._in_batch = False
        self._idle = True  # no batch has started since the last interruption
        self._warmup = 0  # batches left of the warm-up
        self._left: int | None = None  # batches left of the window; None: no window is open
        self._is_first = True  # no window was measured yet
        self._least_steps: int | None = None  # to last min_seconds; known after the second window
        self._lost_windows = 0  # interruptions since the last whole window
        self._room = 0  # batches of the longest window that was interrupted since then
        self._disturbances = 0  # disturbed windows since the last whole one

    def batch_started(self) -> tuple[Action, ...]:
        """Start a training batch: its data is loaded, and nothing is computed yet."""
        if self.done:
            return ()
        self._in_batch = True
        self._idle = False
        actions: tuple[Action, ...] = ()
        if self.limit_w is None:
            actions = self._next_limit()
            self._warmup = max(self._warmup, 1)  # the first batch of all
        if self.done or self._warmup or self._left is not None:
            return actions
        return (*actions, *self._start_window())

    def batch_ended(self) -> tuple[Action, ...]:
        """End the training batch."""
        if self.done or not self._in_batch:
            return ()
        self._in_batch = False
        self._batches -= 1
        if self._warmup:
            self._warmup -= 1
            return () if self._warmup else self._start_window()
        if self._left:
            self._left -= 1
            return () if self._left else (EndWindow(),)
        return ()

    def measured(self, window: Window) -> tuple[Action, ...]:
        """Use the merged window of all ranks after an `EndWindow`, before any other event."""
        if self.limit_w is None:
            return ()
        if window.disturbance:
            if window.disturbance is Disturbance.UNREADABLE and self._least_steps is None:
                self.window_steps *= 10  # energy counters may be slower than so few batches
            return self._disturbed(window.disturbance, self.limit_w)
        self._lost_windows = self._room = self._disturbances = 0
        if self._is_first:
            self._is_first = False
            return self._start_window()
        energy_j, time_s = window.energy_j / self.window_steps, window.time_s / self.window_steps
        if self._least_steps is None:
            self._least_steps = max(1, math.ceil(self._settings.min_seconds / time_s))
            if self._least_steps > self.window_steps:
                self.window_steps = self._least_steps
                return self._start_window()
        self.windows.append(PowerPoint(self.limit_w, energy_j, time_s))
        return self._next_limit()

    def interrupted(self) -> tuple[Action, ...]:
        """Discard the open window; a second call before the next batch changes nothing."""
        self._in_batch = False
        if self.done or self._idle:
            return ()
        self._idle = True
        self._lost_windows += 1
        if self._left is not None:
            self._room = max(self._room, self.window_steps - self._left)
        self._warm_up()
        if self._lost_windows < MAX_LOST_WINDOWS:
            return ()
        if self._room < (self._least_steps or 1):
            settings = self._settings
            return self._give_up(
                "epochs, validations or checkpoints are too close together to measure a limit; "
                f"lower warmup_steps ({settings.warmup_steps}) or min_seconds "
                f"({settings.min_seconds:g})"
            )
        self.window_steps = self._room
        self._lost_windows = self._room = 0
        return ()

    def _disturbed(self, disturbance: Disturbance, limit_w: int) -> tuple[Action, ...]:
        """Set and measure the limit again, or give up."""
        if disturbance is Disturbance.GPU_LOST:
            return self._give_up(DESCRIPTIONS[disturbance])
        self._disturbances += 1
        if self._disturbances < MAX_LOST_WINDOWS:
            return self._set_limit(limit_w)
        lost = f"{MAX_LOST_WINDOWS} times at {limit_w} W"
        return self._give_up(f"{DESCRIPTIONS[disturbance]} ({lost})")

    def _next_limit(self) -> tuple[Action, ...]:
        batches_of_window = self._settings.warmup_steps + self.window_steps
        windows_left = max(0.0, self._batches) / batches_of_window
        limit_w = self._search.propose(self.windows, windows_left)
        if limit_w is not None:
            if limit_w == self.limit_w:
                return self._start_window()  # the power has settled
            return self._set_limit(limit_w)
        self.points = self._search.estimates(self.windows)
        chosen_w = self._select(self.points)
        if chosen_w not in {point.limit_w for point in self.points}:
            return self._give_up(
                f"the selector chose {chosen_w!r} W, which was not measured; select() must return "
                "the limit_w of one of its points"
            )
        return self._finish(Done(chosen_w))

    def _set_limit(self, limit_w: int) -> tuple[Action, ...]:
        self.limit_w = limit_w
        self._warm_up()
        return (SetLimit(limit_w),)

    def _warm_up(self) -> None:
        self._warmup = self._settings.warmup_steps
        self._left = None

    def _start_window(self) -> tuple[Action, ...]:
        self._left = self.window_steps
        return (StartWindow(),)

    def _give_up(self, reason: str) -> tuple[Action, ...]:
        return self._finish(Done(None, reason))

    def _finish(self, done: Done) -> tuple[Action, ...]:
        self.done = done
        self.limit_w = self._left = None
        return (done,)
