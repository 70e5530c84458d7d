"""The profiler: which batches are measured at which power limit, as a pure state machine.

Fed with what happens in training, it answers with what is to be done. It has no clock, no GPU and
no other ranks: all ranks run it in lock step on the same events, and what they measured is merged
(`merge`) before it comes here. So they set the same limit before the same batch.

One limit is measured so: it is set; `warmup_steps` batches pass, in which power and clocks settle;
then the window, so many whole batches. An interruption (the end of an epoch, a validation, a
checkpoint, an exception) takes the open window away and the warm-up begins anew, because the
batches after one are not like the others.

**How long a window is.** `profile_steps` batches, or more to last `min_seconds`: the first window
tells the time of a batch, and where it was too short that is all it is used for. From then on the
length is fixed.

**When epochs are shorter than that.** After `CUTS` interruptions without a whole window, windows
are shortened to what fitted between the last ones, as long as they still last `min_seconds`: a few
slow batches make a good measurement, a short time does not, however many batches it holds, because
the energy counter is refreshed only every 20 to 100 ms. Where even that does not fit, or the limit
is changed by someone else `CUTS` times, profiling is given up. So it ends, whatever happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.search import Search
from zeus_lightning.power.selectors import PowerPoint

CUTS = 3
"""Times in a row that a window may be lost before something is done about it."""


class Disturbance(IntEnum):
    """What makes a window useless; of several ranks' disturbances the largest is told."""

    NONE = 0
    UNREADABLE = 1  # no, or no plausible, reading of energy or time
    NOT_SET = 2  # the driver refused the limit, or it could not be remembered
    LIMIT_CHANGED = 3  # the limit in force is not the one that was set
    GPU_LOST = 4  # the driver knows the GPU no longer

    @property
    def told(self) -> str:
        """What happened, for a person."""
        return _TOLD[self]


_TOLD = {
    Disturbance.NONE: "nothing happened",
    Disturbance.UNREADABLE: "a GPU's energy or time could not be read",
    Disturbance.NOT_SET: "a GPU's power limit could not be set",
    Disturbance.LIMIT_CHANGED: "someone else changed a GPU's power limit",
    Disturbance.GPU_LOST: "a GPU was lost",
}


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured between a window's edges, by one rank or merged over all.

    Args:
        energy_j: Joules; of no meaning when disturbed.
        time_s: Seconds; likewise.
        disturbance: What makes it useless.
    """

    energy_j: float
    time_s: float
    disturbance: Disturbance = Disturbance.NONE


def merge(windows: Sequence[Window]) -> Window:
    """One window of all ranks' windows over the same batches.

    Args:
        windows: One of each rank, in the order of ranks, each of a GPU of its own.

    Returns:
        The sum of the energies, the slowest rank's time, and the worst disturbance. A reading that
        is not positive and finite is a disturbance.
    """
    worst = max(_judged(window) for window in windows)
    if worst:
        return Window(math.nan, math.nan, worst)
    return Window(
        math.fsum(window.energy_j for window in windows), max(window.time_s for window in windows)
    )


def _judged(window: Window) -> Disturbance:
    plausible = 0 < window.energy_j < math.inf and 0 < window.time_s < math.inf
    return max(window.disturbance, Disturbance.NONE if plausible else Disturbance.UNREADABLE)


@dataclass(frozen=True, slots=True)
class SetLimit:
    """Set every GPU to `limit_w`."""

    limit_w: int


@dataclass(frozen=True, slots=True)
class StartWindow:
    """Read energy and time here; an older reading is void."""


@dataclass(frozen=True, slots=True)
class EndWindow:
    """Read energy and time here, merge over ranks, and call `Profiler.measured`."""


@dataclass(frozen=True, slots=True)
class Done:
    """Profiling is over.

    Args:
        limit_w: To be applied for the rest of the run; None: profiling was given up, and the
            limits found at the start are to be restored.
        reason: For a person, why it was given up; empty when it was not.
    """

    limit_w: int | None
    reason: str = ""


Action = SetLimit | StartWindow | EndWindow | Done


@dataclass(frozen=True, kw_only=True)
class ProfilerSettings:
    """How to profile; the arguments of `ZeusPowerLimitCallback` of these names.

    Args:
        step_w: Watts between two limits.
        wait_steps: Batches at the start of training before anything is done.
        warmup_steps: Batches between setting a limit, or an interruption, and measuring.
        profile_steps: Batches of a window, at least.
        min_seconds: Seconds of a window, at least.

    Raises:
        ZeusConfigError: One is negative, of another type, or a zero that makes no sense.
    """

    step_w: int = 25
    wait_steps: int = 1
    warmup_steps: int = 10
    profile_steps: int = 40
    min_seconds: float = 2.0

    def __post_init__(self) -> None:
        least = {"step_w": 1, "wait_steps": 0, "warmup_steps": 0, "profile_steps": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or value < minimum:
                raise ZeusConfigError(
                    f"{name} is {value!r}; it must be an integer, {minimum} or more"
                )
        seconds = self.min_seconds
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= seconds < math.inf:
            raise ZeusConfigError(f"min_seconds is {seconds!r}; it must be a number, 0 or more")


class Profiler:
    """The state machine; see the module's text.

    Every method answers with the actions to be done now, in order. After `Done` nothing is asked
    any more. An interruption needs no action: the next `StartWindow` makes the open window void.

    Args:
        search: Which limit to measure next, see `make_search`.
        select: Which limit to choose of the points when the search is done.
        settings: How to profile.
        points: Measured before, in a run that was broken off for instance; not measured again.

    Attributes:
        points: What was measured, in order.
        limit_w: The limit being measured; None before the first, and when profiling is over.
        window_steps: Batches of a window.
        done: How profiling ended, None while it goes on.

    Example:
        ```python
        profiler = Profiler(search, partial(selector.select, inputs=inputs), ProfilerSettings())
        for action in profiler.batch_started():  # in on_train_batch_start
            ...
        ```
    """

    def __init__(
        self,
        search: Search,
        select: Callable[[Sequence[PowerPoint]], int],
        settings: ProfilerSettings,
        points: Sequence[PowerPoint] = (),
    ) -> None:
        self.points = list(points)
        self.limit_w: int | None = None
        self.window_steps = settings.profile_steps
        self.done: Done | None = None
        self._search = search
        self._select = select
        self._settings = settings
        self._wait = settings.wait_steps
        self._in_batch = False
        self._idle = True  # nothing has begun since the last interruption
        self._warmup = 0  # batches of it that are left
        self._left: int | None = None  # batches left of the window; None: no window is open
        self._least_steps: int | None = None  # of a window; known once one has told the batch time
        self._cuts = 0  # interruptions since a window was whole
        self._room = 0  # batches of the longest window among those cut
        self._disturbances = 0  # likewise

    def batch_started(self) -> tuple[Action, ...]:
        """A training batch begins: its data is there, nothing of it is computed yet."""
        if self.done:
            return ()
        self._in_batch = True
        if self._wait:
            return ()
        self._idle = False
        actions = self._next_limit() if self.limit_w is None else ()
        if self.done or self._warmup or self._left is not None:
            return actions
        return (*actions, *self._start_window())

    def batch_ended(self) -> tuple[Action, ...]:
        """The training batch is over."""
        if self.done or not self._in_batch:
            return ()
        self._in_batch = False
        if self._wait:
            self._wait -= 1
        elif self._warmup:
            self._warmup -= 1
            return () if self._warmup else self._start_window()
        elif self._left:
            self._left -= 1
            return () if self._left else (EndWindow(),)
        return ()

    def measured(self, window: Window) -> tuple[Action, ...]:
        """The answer to `EndWindow`, before anything else happens: all ranks' windows, merged."""
        if self.done or self._left != 0 or self.limit_w is None:
            return ()
        if disturbance := _judged(window):
            return self.disturbed(disturbance)
        batch_time_s = window.time_s / self.window_steps
        if self._least_steps is None:
            self._least_steps = max(1, math.ceil(self._settings.min_seconds / batch_time_s))
            if self._least_steps > self.window_steps:
                self.window_steps = self._least_steps
                return self._start_window()
        energy_j = window.energy_j / self.window_steps
        self.points.append(PowerPoint(self.limit_w, energy_j, batch_time_s))
        self._cuts = self._room = self._disturbances = 0
        return self._next_limit()

    def interrupted(self) -> tuple[Action, ...]:
        """Training stops for a while: an epoch's end, a validation, a checkpoint, an exception.

        To be called by all ranks at the same batch. A second call before the next batch changes
        nothing.
        """
        self._in_batch = False
        if self.done or self._idle:
            return ()
        self._idle = True
        self._cuts += 1
        if self._left is not None:
            self._room = max(self._room, self.window_steps - self._left)
        self._warm_up()
        return () if self._cuts < CUTS else self._make_fit()

    def disturbed(self, disturbance: Disturbance) -> tuple[Action, ...]:
        """Something made the measurement useless on some rank; to be called by all of them.

        A lost GPU ends profiling; otherwise the limit is set and measured again.
        """
        if self.done or not disturbance:
            return ()
        if disturbance is Disturbance.GPU_LOST:
            return self._give_up(disturbance.told)
        if self.limit_w is None:
            return ()
        self._disturbances += 1
        if self._disturbances < CUTS:
            return self._set_limit(self.limit_w)
        return self._give_up(f"{disturbance.told} {CUTS} times while {self.limit_w} W was measured")

    def _next_limit(self) -> tuple[Action, ...]:
        limit_w = self._search(self.points)
        if limit_w is not None:
            return self._set_limit(limit_w)
        chosen_w = self._select(self.points)
        if chosen_w not in {point.limit_w for point in self.points}:
            return self._give_up(f"the selector chose {chosen_w!r} W, which was not measured")
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

    def _make_fit(self) -> tuple[Action, ...]:
        """Shorten the window to the longest one that was cut, or give up."""
        least = self._least_steps or 1
        if self._room < least:
            settings = self._settings
            return self._give_up(
                "training is interrupted, by the end of an epoch, a validation or a checkpoint, "
                f"before a limit can be measured: that takes {settings.warmup_steps} batches of "
                f"warm-up and {settings.min_seconds:g} s after them; interrupt it less often, or "
                "lower warmup_steps or min_seconds"
            )
        self.window_steps = self._room
        self._cuts = self._room = 0
        return ()

    def _give_up(self, reason: str) -> tuple[Action, ...]:
        return self._finish(Done(None, reason))

    def _finish(self, done: Done) -> tuple[Action, ...]:
        self.done = done
        self.limit_w = None
        self._left = None
        return (done,)
