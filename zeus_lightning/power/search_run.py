"""`PowerSearch`: the search for a power limit in a run, in step on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.environment import is_control
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusMeterError,
    ZeusPowerError,
)
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.power import summary
from zeus_lightning.power.gpus import Gpus, check_own, check_ranges
from zeus_lightning.power.profile import PowerProfile, ProfileKey
from zeus_lightning.power.profiler import (
    DESCRIPTIONS,
    Action,
    Done,
    EndWindow,
    Profiler,
    ProfilerSettings,
    SetLimit,
    StartWindow,
    merge,
)
from zeus_lightning.power.search import Search, Sweep, make_search, power_limits
from zeus_lightning.power.selectors import PowerPoint, Selector, SelectorInputs, parse_selector
from zeus_lightning.power.store import ProfileStore, Service, find_service
from zeus_lightning.run.ranks import gather, on_every_rank, on_rank_zero, rank_of, ranks_text
from zeus_lightning.run.record import ShowsTrial
from zeus_lightning.zeusd import find_zeusd


class PowerSearch:
    """Find the best power limit while a loop trains, and train at it.

    `ZeusPowerLimitCallback` and `PowerLimit` translate what their loop does into calls of these
    methods, which all ranks make in step: `open`, `start`, the events of training, `close`. Until
    `start`, and after `open` found no GPU whose limit can be searched for, events do nothing.

    `ZeusPowerLimitCallback` describes the arguments; `settings` go to `ProfilerSettings`.

    Attributes:
        profiled: Whether the last run measured limits.
        profile: The measurements of the last run's batch size and GPUs; None if there are none.
        limit_w: The limit chosen in the last run; None if none was set.
        profiler: The same on all ranks; None unless it measures, and then events do nothing.
    """

    def __init__(
        self,
        *,
        selector: str | Selector = "zeus-cost",
        profile_path: str | Path | None = None,
        apply: bool = True,
        on_unavailable: Literal["warn", "raise"] = "warn",
        meter: str | EnergyMeter = "auto",
        **settings: Any,
    ) -> None:
        if on_unavailable not in ("warn", "raise"):
            raise ZeusConfigError(f"on_unavailable is {on_unavailable!r}; it must be warn or raise")
        self._selector = parse_selector(selector)
        self._settings = ProfilerSettings(**settings)
        self._path = None if profile_path is None else Path(profile_path)
        self._apply = apply
        self._on_unavailable = on_unavailable
        self._meter = meter
        self.profiled = False
        self.profile: PowerProfile | None = None
        self.limit_w: int | None = None
        self._gpus: Gpus | None = None  # from `open` to `close`
        self._sets_limits = False  # rather than observe
        self.profiler: Profiler | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or pickle, which has no part in the running search."""
        running = ("_strategy", "_inputs", "_store", "_log")
        kept = {name: value for name, value in vars(self).items() if name not in running}
        return kept | {"_gpus": None, "profiler": None}

    @property
    def is_open(self) -> bool:
        """Whether there are GPUs whose limits can be set, or observed."""
        return self._gpus is not None

    def open(self, strategy: Strategy) -> None:
        """Open this rank's GPUs, and reserve their limits, before the first step.

        Raises:
            ZeusConfigError: The meter counts no GPUs, ranks share a GPU, or the GPUs have different
                ranges of limits.
            ZeusMeterError: With `on_unavailable="raise"`, the energy of the GPUs cannot be read.
            ZeusPowerError: With `on_unavailable="raise"`, their limits cannot be set.
        """
        self.close()
        self.profiled, self.profile, self.limit_w = False, None, None
        self._strategy = strategy
        control = on_rank_zero(strategy, is_control)
        with ExitStack() as close_on_error:
            close_on_error.callback(self.close)
            if not self._is_available(self._open_gpus, "power-limit search disabled"):
                return
            assert self._gpus is not None
            check_own(gather(strategy, self._gpus.uuids))
            ranges = gather(strategy, (self._gpus.min_w, self._gpus.max_w))
            check_ranges({f"rank {rank}": limits_w for rank, limits_w in enumerate(ranges)})
            power_limits(*ranges[0], self._settings.step_w)  # raises for a wrong step_w
            self._sets_limits = (
                self._apply
                and not control
                and self._is_available(self._gpus.take_control, "observing only")
            )
            if not self._sets_limits:
                self._gpus.restore()  # on ranks that had control
            if control:
                on_every_rank(strategy, self._gpus.restore_left)
            close_on_error.pop_all()

    def start(
        self,
        *,
        batch_size: int | None,
        batches: float,
        recurring: ShowsTrial | None,
        log: Callable[[dict[str, float]], None],
    ) -> None:
        """Set the limit that a stored profile shows to be best, or start to measure.

        Args:
            batch_size: Over all ranks; None if it is unknown, or changes. Rank zero's counts.
            batches: Training batches until the end of the run; infinite if that is unknown.
            recurring: The run of a recurring job that this one is, if any.
            log: Logs metrics at the batch that was trained last.
        """
        if (gpus := self._gpus) is None:
            return
        strategy, self._log = self._strategy, log
        own = on_every_rank(strategy, lambda: (gpus.count, gpus.limit_w()))
        counts, limits_w = zip(*gather(strategy, own), strict=True)
        job = None if recurring is None else recurring.job
        eta_knob = 0.5 if job is None else job.eta_knob
        self._inputs = SelectorInputs(eta_knob=eta_knob, max_power_w=sum(counts) * gpus.max_w)
        service = on_every_rank(strategy, lambda: find_service(recurring))
        self._store = store = self._open_store(gpus, sum(counts), batch_size, service)
        found = on_rank_zero(strategy, lambda: store.find() if store else None)
        if found is not None:
            self._use(found.choose_again(self._selector, self._inputs))
            return
        search: Search
        if self._sets_limits:
            allowed_w = power_limits(gpus.min_w, gpus.max_w, self._settings.step_w)
            search = make_search(allowed_w, self._selector, self._inputs)
        else:
            rank_zero_info(
                f"zeus: observing the current power limit, {max(limits_w)} W; no stored profile "
                "shows which one is best"
            )
            search = Sweep((max(limits_w),))
        select = partial(self._selector.select, inputs=self._inputs)
        batches = on_rank_zero(strategy, lambda: batches)
        self.profiler = Profiler(search, select, self._settings, batches)

    def batch_started(self) -> None:
        """Start a training batch: its data is loaded, and nothing is computed yet."""
        if (profiler := self.profiler) is not None:
            self._do(profiler, profiler.batch_started())

    def batch_ended(self) -> None:
        """End the training batch."""
        if (profiler := self.profiler) is not None:
            self._do(profiler, profiler.batch_ended())

    def interrupted(self) -> None:
        """Note that training pauses: a validation, the end of an epoch, a checkpoint."""
        if (profiler := self.profiler) is not None:
            self._do(profiler, profiler.interrupted())

    def close(self) -> None:
        """Restore the limits found at the start, and close the GPUs; again, it does nothing."""
        gpus, self._gpus, self.profiler = self._gpus, None, None
        if gpus is not None:
            gpus.close()

    def _is_available(self, call: Callable[[], None], instead: str) -> bool:
        """Call on every rank; if one fails, raise or, if allowed, warn what is done instead."""

        def call_here() -> None:
            try:
                call()
            except (ZeusMeterError, ZeusPowerError) as error:
                if getattr(self._strategy, "world_size", 1) == 1:
                    raise
                message = f"rank {rank_of(self._strategy)}: {error.message}"
                raise type(error)(message, error.fields) from error

        try:
            on_every_rank(self._strategy, call_here)
        except (ZeusMeterError, ZeusPowerError) as error:
            if self._on_unavailable == "raise":
                raise
            rank_zero_warn(f"zeus: {instead}: {error.message}")
            return False
        return True

    def _open_gpus(self) -> None:
        self._gpus = Gpus(self._meter, self._strategy.root_device, find_zeusd())

    def _open_store(
        self, gpus: Gpus, num_devices: int, batch_size: int | None, service: Service | None
    ) -> ProfileStore | None:
        batch_size = on_rank_zero(self._strategy, lambda: batch_size)
        if batch_size is None:
            rank_zero_warn(
                "zeus: the global batch size is unknown or changes during the run; power profiles "
                "are neither loaded nor stored"
            )
            return None
        key = ProfileKey(gpus.device_model, num_devices, batch_size)
        return ProfileStore(key, self._path, service)

    def _use(self, profile: PowerProfile) -> None:
        """Set a stored profile's limit for the whole run."""
        self.profile = profile
        decision = "the power limit is" if self._sets_limits else "the power limit would be"
        rank_zero_info(
            f"zeus: {decision} {summary.saving(profile.points, profile.chosen_w)}; chosen by "
            f"{profile.selector} from the power profile of {profile.measured_at}"
        )
        if self._sets_limits:
            self._set_limit(profile.points, profile.chosen_w)

    def _do(self, profiler: Profiler, actions: Iterable[Action]) -> None:
        assert self._gpus is not None
        for action in actions:
            match action:
                case SetLimit(limit_w):
                    self.profiled = self._sets_limits
                    self._gpus.set_w(limit_w)
                case StartWindow():
                    self._gpus.start_window()
                case EndWindow():
                    self._end_window(profiler, self._gpus)
                case Done(limit_w, reason):
                    self.profiler = None
                    if limit_w is None:
                        self._gpus.restore()
                        rank_zero_warn(
                            f"zeus: no power limit was chosen: {reason}; training continues"
                        )
                    elif self._sets_limits:
                        self._finish(profiler, limit_w)

    def _end_window(self, profiler: Profiler, gpus: Gpus) -> None:
        """Merge the window over the ranks, and perform the profiler's next actions."""
        windows = gather(self._strategy, gpus.end_window())
        merged, limit_w, measured = merge(windows), profiler.limit_w, len(profiler.windows)
        actions = profiler.measured(merged)
        if len(profiler.windows) > measured:
            point = profiler.windows[-1]
            rank_zero_info(f"zeus: power limit {summary.describe(point)}")
            self._log(summary.metrics(point))
        elif merged.disturbance:
            ranks = [rank for rank, window in enumerate(windows) if window.disturbance]
            rank_zero_warn(
                f"zeus: discarded the measurement at {limit_w} W: "
                f"{DESCRIPTIONS[merged.disturbance]} ({ranks_text(ranks)})"
            )
        self._do(profiler, actions)

    def _finish(self, profiler: Profiler, limit_w: int) -> None:
        """Set the limit that was found best, and store what was measured."""
        points, selector = profiler.points, self._selector.name
        rank_zero_info(
            "zeus: power limits measured, with energy and time relative to the highest\n"
            + summary.table(points, limit_w, selector)
        )
        self._set_limit(points, limit_w)
        if (store := self._store) is None or self._gpus is None:
            return
        self.profile = PowerProfile(
            **asdict(store.key),
            **asdict(self._inputs),
            points=points,
            chosen_w=limit_w,
            selector=selector,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if self._strategy.is_global_zero:
            store.save(self.profile)  # last: the service may be slow

    def _set_limit(self, points: Sequence[PowerPoint], limit_w: int) -> None:
        """Set a limit for the rest of the run, on all ranks or on none."""
        assert self._gpus is not None
        failures = gather(self._strategy, not self._gpus.set_w(limit_w))
        ranks = [rank for rank, failed in enumerate(failures) if failed]
        if ranks:
            self._gpus.restore()
            rank_zero_warn(
                f"zeus: the power limit of {limit_w} W cannot be set on {ranks_text(ranks)}; "
                "training continues"
            )
            return
        self.limit_w = limit_w
        self._log(summary.metrics(next(point for point in points if point.limit_w == limit_w)))


class ShowsPowerLimit:
    """What a callback or a block shows of its search."""

    _search: PowerSearch

    @property
    def profiled(self) -> bool:
        """Whether the last run measured limits."""
        return self._search.profiled

    @property
    def profile(self) -> PowerProfile | None:
        """The measurements of the last run's batch size and GPUs; None if there are none."""
        return self._search.profile

    @property
    def limit_w(self) -> int | None:
        """The limit chosen in the last run, in watts; None if none was set."""
        return self._search.limit_w
