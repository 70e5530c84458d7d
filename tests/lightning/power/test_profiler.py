"""The profiler, driven batch by batch: what it asks for, and when."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from zeus_lightning.power.profiler import (
    MAX_LOST_WINDOWS,
    Action,
    Disturbance,
    Done,
    EndWindow,
    Profiler,
    ProfilerSettings,
    SetLimit,
    StartWindow,
    Window,
    merge,
)
from zeus_lightning.power.search import Sweep, make_search, power_limits
from zeus_lightning.power.selectors import SelectorInputs, parse_selector

LIMITS = power_limits(100, 250, 25)
INPUTS = SelectorInputs(max_power_w=250.0)


def profiler(
    settings: ProfilerSettings,
    selector: str = "zeus-cost",
    batches: float = math.inf,
    *,
    sweeps: bool = True,
) -> Profiler:
    chosen = parse_selector(selector)
    return Profiler(
        Sweep(LIMITS) if sweeps else make_search(LIMITS, chosen, INPUTS),
        partial(chosen.select, inputs=INPUTS),
        settings,
        batches,
    )


def batch_takes(limit_w: int | None) -> Window:
    """Time falls as the limit rises, power is what the limit allows up to 180 W."""
    power_w = min(limit_w or 250, 180)
    return Window(power_w * (1 + 60 / power_w), 1 + 60 / power_w)


@dataclass
class Training:
    """Stands for the callback: does what is asked, and notes it."""

    profiler: Profiler
    takes: Callable[[int | None], Window] = batch_takes
    log: list[tuple[int, Action]] = field(default_factory=list)
    """(Batches ended so far, action)."""
    batches: int = 0
    open_at: int | None = None
    limit_w: int | None = None
    windows: list[int] = field(default_factory=list)
    """Batches of each window that was measured."""

    def do(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            assert not self.log or not isinstance(self.log[-1][1], Done), "nothing after Done"
            self.log.append((self.batches, action))
            match action:
                case SetLimit(limit_w):
                    assert limit_w in LIMITS
                    self.limit_w, self.open_at = limit_w, None
                case StartWindow():
                    self.open_at = self.batches
                case EndWindow():
                    assert self.open_at is not None, "no window spans an interruption"
                    count, self.open_at = self.batches - self.open_at, None
                    assert count == self.profiler.window_steps
                    self.windows.append(count)
                    one = self.takes(self.limit_w)
                    window = Window(one.energy_j * count, one.time_s * count, one.disturbance)
                    self.do(self.profiler.measured(merge([window])))

    def batch(self) -> None:
        self.do(self.profiler.batch_started())
        self.batches += 1
        self.do(self.profiler.batch_ended())

    def interrupt(self) -> None:
        self.open_at = None
        self.do(self.profiler.interrupted())

    def epochs(self, batches: int, at_most: int = 10_000) -> Training:
        for _ in itertools.takewhile(lambda _: not self.profiler.done, range(at_most)):
            self.batch()
            if self.batches % batches == 0:
                self.interrupt()
        return self


def test_too_short_a_second_window_only_sets_the_length_of_the_others() -> None:
    seconds = batch_takes(250).time_s * 100.5
    settings = ProfilerSettings(warmup_steps=5, profile_steps=40, min_seconds=seconds)
    training = Training(profiler(settings)).epochs(10_000)
    assert training.windows == [40, 40] + [101] * len(LIMITS)
    assert training.log[3:7] == [
        (45, StartWindow()),
        (85, EndWindow()),
        (85, StartWindow()),  # at the same limit, without another warm-up
        (186, EndWindow()),
    ]


@pytest.mark.parametrize("sweeps", [True, False])
def test_a_slow_first_window_leaves_no_trace(sweeps: bool) -> None:
    settings = ProfilerSettings(warmup_steps=2, profile_steps=5, min_seconds=10.0)
    usual = Training(profiler(settings, batches=500, sweeps=sweeps)).epochs(10_000)
    slow = Training(profiler(settings, batches=500, sweeps=sweeps))

    def takes(limit_w: int | None) -> Window:
        batch, slower = batch_takes(limit_w), 5 if len(slow.windows) == 1 else 1
        return Window(slower * batch.energy_j, slower * batch.time_s)

    slow.takes = takes
    slow.epochs(10_000)
    assert slow.profiler.windows == usual.profiler.windows
    assert slow.profiler.points == usual.profiler.points
    assert slow.log == usual.log


def test_energy_counters_slower_than_the_first_window_only_make_windows_longer() -> None:
    settings = ProfilerSettings(warmup_steps=1, profile_steps=4, min_seconds=0.5)
    training = Training(profiler(settings))

    def takes(limit_w: int | None) -> Window:
        changes = training.profiler.window_steps >= 10
        return Window(float(limit_w or 250) * changes, 0.01)

    training.takes = takes
    training.epochs(10_000)
    assert training.windows[:3] == [4, 40, 40]
    assert set(training.windows[3:]) == {50}
    assert training.limit_w == 100


def test_several_interruptions_without_a_batch_between_are_one() -> None:
    training = Training(profiler(ProfilerSettings(min_seconds=0)))
    for _ in range(5):
        training.batch()
    for _ in range(MAX_LOST_WINDOWS + 1):
        training.interrupt()
    assert not training.profiler.done


def test_a_window_holds_the_loading_of_each_of_its_batches() -> None:
    settings = ProfilerSettings(warmup_steps=2, profile_steps=2, min_seconds=0)
    machine = profiler(settings)
    answers = [[machine.batch_started(), machine.batch_ended()] for _ in range(4)]
    assert answers == [
        [(SetLimit(250),), ()],
        [(), (StartWindow(),)],  # before the next batch is loaded
        [(), ()],
        [(), (EndWindow(),)],
    ]


def test_a_batch_that_was_interrupted_is_no_warm_up() -> None:
    settings = ProfilerSettings(warmup_steps=1, profile_steps=2, min_seconds=0)
    machine = profiler(settings)
    machine.batch_started()
    machine.interrupted()
    assert machine.batch_ended() == ()
    assert machine.batch_started() == ()
    assert machine.batch_ended() == (StartWindow(),)


def test_in_short_epochs_of_slow_batches_windows_are_made_to_fit() -> None:
    training = Training(profiler(ProfilerSettings(min_seconds=5.0))).epochs(24)
    assert training.windows == [14] * (1 + len(LIMITS))
    assert training.profiler.done == Done(125)


def test_a_limit_that_was_not_measured_is_never_applied() -> None:
    machine = Profiler(
        Sweep(LIMITS),
        lambda _: 240,
        ProfilerSettings(min_seconds=0),
    )
    Training(machine).epochs(10_000)
    assert machine.done is not None
    assert machine.done.limit_w is None
    assert "240" in machine.done.reason


# Merging over ranks


def test_the_worst_disturbance_of_any_rank_is_everyones() -> None:
    lost = Window(math.nan, math.nan, Disturbance.GPU_LOST)
    changed = Window(10.0, 2.0, Disturbance.LIMIT_CHANGED)
    fine = Window(10.0, 2.0)
    assert merge([fine, changed]).disturbance is Disturbance.LIMIT_CHANGED
    assert merge([lost, fine, changed]).disturbance is Disturbance.GPU_LOST
    assert merge([fine, Window(0.0, 2.0)]).disturbance is Disturbance.UNREADABLE
    assert merge([fine, Window(1.0, math.inf)]).disturbance is Disturbance.UNREADABLE


# Any sequence of events

small = st.integers(0, 4)
all_settings = st.builds(
    ProfilerSettings,
    warmup_steps=small,
    profile_steps=st.integers(1, 8),
    min_seconds=st.floats(0, 20),
)
readings = st.builds(
    Window,
    st.floats(0.1, 1e6) | st.sampled_from([0.0, math.nan]),
    st.floats(0.1, 10.0) | st.sampled_from([-1.0, math.inf]),
    st.sampled_from([Disturbance.NONE] * 12 + list(Disturbance)),
)
events = st.sampled_from(["batch"] * 6 + ["interrupt", "half a batch"])


class Ranks(Training):
    """Two ranks with readings of their own, whose machines must ask for the same."""

    def __init__(self, machines: list[Profiler], readings: Iterator[Window]) -> None:
        super().__init__(machines[0])
        self.machines, self.readings = machines, readings

    def all(self, event: Callable[[Profiler], tuple[Action, ...]]) -> None:
        first, second = (event(machine) for machine in self.machines)
        assert first == second
        self.follow(first)

    def follow(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, EndWindow):
                assert self.open_at is not None, "no window spans an interruption"
                assert self.batches - self.open_at == self.profiler.window_steps
                self.open_at = None
                merged = merge([next(self.readings), next(self.readings)])
                self.all(partial(Profiler.measured, window=merged))
            else:
                self.do((action,))

    def happens(self, event: str) -> None:
        if event in ("batch", "half a batch"):
            self.all(Profiler.batch_started)
        if event == "batch":
            self.batches += 1
            self.all(Profiler.batch_ended)
        if event in ("interrupt", "half a batch"):
            self.open_at = None
            self.all(Profiler.interrupted)


@settings_of_hypothesis(max_examples=40)
@given(
    settings=all_settings,
    sequence=st.lists(events, min_size=1, max_size=40).filter(lambda them: "batch" in them),
    windows=st.lists(readings, min_size=1, max_size=20),
    selector=st.sampled_from(["energy", "time", "zeus-cost", "max-slowdown:1.2"]),
    sweeps=st.booleans(),
)
def test_whatever_happens_limits_are_in_range_windows_are_whole_and_it_ends(
    settings: ProfilerSettings,
    sequence: list[str],
    windows: list[Window],
    selector: str,
    sweeps: bool,
) -> None:
    machines = [profiler(settings, selector, 40, sweeps=sweeps) for _ in range(2)]
    ranks = Ranks(machines, itertools.cycle(windows))
    for event in itertools.islice(itertools.cycle(sequence), 200_000):
        if ranks.profiler.done:
            break
        ranks.happens(event)
        assume(ranks.profiler.window_steps <= 2000)  # longer ones end, too, but not so soon
    done = ranks.profiler.done
    assert done is not None
    assert machines[1].done == done
    assert ranks.log[-1][1] == done
    if done.limit_w is None:
        assert done.reason
    else:
        assert done.limit_w in {point.limit_w for point in ranks.profiler.windows}


@given(
    epoch=st.integers(1, 60),
    settings=all_settings,
)
def test_epochs_that_hold_a_long_enough_window_are_enough(
    epoch: int, settings: ProfilerSettings
) -> None:
    slow = batch_takes(250).time_s  # the shortest batch
    steps = max(1, math.ceil(settings.min_seconds / slow))
    training = Training(profiler(settings)).epochs(epoch, at_most=60 * 600)
    assert training.profiler.done is not None
    assert (0, StartWindow()) not in training.log  # the first batch may compile the model
    if epoch >= settings.warmup_steps + max(steps, settings.profile_steps):
        assert training.profiler.done.limit_w is not None
    if epoch < settings.warmup_steps + steps:
        assert training.profiler.done.limit_w is None
