"""One run of a training loop: measure power limits in step on all ranks, or apply a known one."""

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.environment import is_control
from zeus_lightning.errors import ZeusConfigError, ZeusPowerError
from zeus_lightning.meters import amd, nvml
from zeus_lightning.power import summary
from zeus_lightning.power.gpus import Gpus, check_own, check_ranges
from zeus_lightning.power.load_change import Check, EpochTimes, Stopwatch, time_noise
from zeus_lightning.power.loop import Loop
from zeus_lightning.power.options import PowerOptions, PowerResult
from zeus_lightning.power.profile import MeasuredWindow, PowerProfile, ProfileKey
from zeus_lightning.power.profile_store import ProfileStore, find_service
from zeus_lightning.power.profiler import (
    DESCRIPTIONS,
    Action,
    Done,
    EndWindow,
    Profiler,
    ReadCounter,
    SetLimit,
    StartWindow,
    merge,
)
from zeus_lightning.power.run_length import RECURRENCES, batches_to_target
from zeus_lightning.power.search import Sweep, make_search, power_limits
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost
from zeus_lightning.run.ranks import gather, on_every_rank, on_rank_zero
from zeus_lightning.zeusd import find_zeusd


@dataclass
class PowerFit:
    """The search in one run of a loop; `open_fit` creates it.

    Args:
        options: `apply` is also False if the limits turned out not to be settable.
        gpus: This rank's GPUs.
        result: Filled in during the fit.
    """

    options: PowerOptions
    loop: Loop
    gpus: Gpus
    result: PowerResult

    def __post_init__(self) -> None:
        self._resumed: PowerProfile | None = None  # in the checkpoint that the run resumes from
        self._profiler: Profiler | None = None  # the same on all ranks; None unless it measures
        self._applied: tuple[PowerPoint, ...] = ()  # from which the limit in force was chosen
        self._epochs: EpochTimes | None = None  # None while no limit is applied
        self._stopwatch = Stopwatch(self.gpus.now_s)
        self._is_check = False  # the profiler checks the limit in force again

    def resume(self, state: dict[str, Any]) -> None:
        """Use the profile of a checkpoint, if it has one; before `start`."""
        if not state:
            return
        try:
            self._resumed = PowerProfile.from_json(state["profile"])
        except (KeyError, ZeusConfigError) as error:
            rank_zero_warn(f"zeus: the checkpoint's power profile cannot be used: {error}")

    def start(self) -> None:
        """Apply the stored profile of the run's batch size, or start to measure one."""
        options, gpus, strategy = self.options, self.gpus, self.loop.strategy
        recurring = self.loop.recurring
        in_force_w = on_every_rank(strategy, gpus.in_force_w)
        self._saves = self.loop.saves()
        counts, limits_in_force_w = zip(*gather(strategy, (gpus.count, in_force_w)), strict=True)
        job = None if recurring is None else recurring.job
        eta_knob = 0.5 if job is None else job.eta_knob
        inputs = SelectorInputs(eta_knob=eta_knob, max_power_w=sum(counts) * gpus.max_w)
        self._inputs = inputs
        self._store = store = self._open_store(sum(counts))
        nearest = on_rank_zero(strategy, lambda: store.nearest(self._resumed) if store else None)
        if store and nearest and nearest.batch_size == store.key.batch_size:
            self._use(nearest.choose_again(options.selector, inputs))
            return
        if options.apply:
            limits_w = power_limits(gpus.min_w, gpus.max_w, options.step_w)
            if nearest is not None:
                rank_zero_info(
                    "zeus: the search for the power limit knows the power profile of batch size "
                    f"{nearest.batch_size}"
                )
            similar = () if nearest is None else nearest.points
            search = make_search(options.search, limits_w, options.selector, inputs, similar)
        else:
            highest_w = max(limits_in_force_w)
            rank_zero_info(
                f"zeus: observing the power limit in force, {highest_w} W; there is no profile "
                "that shows which one would be best"
            )
            search = Sweep((highest_w,))
        select = partial(options.selector.select, inputs=inputs)
        to_target = on_rank_zero(strategy, partial(batches_to_target, self.loop))
        batches = min(self.loop.batches_left(), to_target)
        later = RECURRENCES * batches if store is not None and store.is_shared else 0.0
        self._profiler = Profiler(search, select, options, batches, later)

    def batch_started(self) -> None:
        """Pass the start of a training batch to the profiler."""
        if (profiler := self._profiler) is None:
            return
        saves = self.loop.saves()
        if saves != self._saves:
            self._saves = saves
            self._do(profiler, profiler.interrupted())
        self._do(profiler, profiler.batch_started())

    def batch_ended(self) -> None:
        """Pass the end of a training batch to the profiler."""
        if (profiler := self._profiler) is not None:
            self._do(profiler, profiler.batch_ended())

    def epoch_started(self) -> None:
        """Time the epoch if a limit is applied."""
        self._stopwatch.reset(use=self._epochs is not None and self._profiler is None)
        self.resumed_training()

    def resumed_training(self) -> None:
        """Time the epoch's batches again, after a validation."""
        self._stopwatch.start(self.loop.batches_done())

    def epoch_ended(self) -> None:
        """Check the limit again in the next epoch if batches take another time than before."""
        self.interrupted()
        if self._epochs is None or self._profiler is not None:
            return
        times_s = gather(self.loop.strategy, self._stopwatch.batch_time_s)
        if all(map(math.isfinite, times_s)) and self._epochs.has_moved(max(times_s)):
            self._check(self._epochs.tolerance)

    def interrupted(self) -> None:
        """Pass a pause to the profiler: a validation, the end of an epoch, a checkpoint."""
        self._stopwatch.stop(self.loop.batches_done())
        if (profiler := self._profiler) is not None:
            self._do(profiler, profiler.interrupted())

    def close(self) -> None:
        """Restore the limits found at the start, and close the GPUs."""
        self._profiler = None
        self.gpus.close()

    def _do(self, profiler: Profiler, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SetLimit(limit_w):
                    self.result.profiled = self.gpus.in_control
                    self.gpus.set_w(limit_w)
                case StartWindow():
                    self.gpus.start_window()
                case ReadCounter():
                    self.gpus.read_counter()
                case EndWindow():
                    self._end_window(profiler)
                case Done():
                    self._finish(action, profiler)

    def _check(self, tolerance: float) -> None:
        """Measure the limit in force again, and search on if the load under it has changed."""
        options, gpus, selector = self.options, self.gpus, self.options.selector
        limits_w = power_limits(gpus.min_w, gpus.max_w, options.step_w)
        chosen = next(each for each in self._applied if each.limit_w == self.result.limit_w)
        # A stored profile may have been measured with another step_w.
        limits_w = tuple(sorted({*limits_w, chosen.limit_w}, reverse=True))
        search = make_search(options.search, limits_w, selector, self._inputs, self._applied)
        rank_zero_info(
            f"zeus: batches take another time than before, so the power limit of {chosen.limit_w} "
            "W is checked"
        )
        self._is_check = True
        self._profiler = Profiler(
            Check(chosen, tolerance, search),
            partial(selector.select, inputs=self._inputs),
            replace(options, wait_steps=0),
            self.loop.batches_left(),
        )

    def _open_store(self, num_devices: int) -> ProfileStore | None:
        batch_size = on_rank_zero(self.loop.strategy, self.loop.global_batch_size)
        if batch_size is None:
            rank_zero_warn(
                "zeus: the global batch size is unknown, or changes during the run, so power "
                "profiles are neither looked for nor stored"
            )
            return None
        options = self.options
        key = ProfileKey(self.gpus.device_model, num_devices, batch_size)
        service = find_service(options.url, options.job_id, options.token, self.loop.recurring)
        return ProfileStore(
            key,
            (self.gpus.min_w, self.gpus.max_w),
            options.profile_path,
            service,
            options.profile_steps,
        )

    def _use(self, profile: PowerProfile) -> None:
        """Apply a stored profile's limit for the whole run."""
        self.result.profile = profile
        decision = "the power limit is" if self.options.apply else "would set the power limit to"
        rank_zero_info(
            f"zeus: {decision} {profile.chosen_w} W, as {profile.selector} chooses from the power "
            f"profile of {profile.measured_at}: {summary.saving(profile.points, profile.chosen_w)}"
        )
        if self.options.apply:
            self._apply(profile.points, profile.chosen_w)

    def _end_window(self, profiler: Profiler) -> None:
        """Merge the window over the ranks, and perform the profiler's next actions."""
        windows = gather(self.loop.strategy, self.gpus.end_window())
        merged, limit_w, measured = merge(windows), profiler.limit_w, len(profiler.windows)
        actions = profiler.measured(merged)
        if len(profiler.windows) > measured:
            point = profiler.windows[-1]
            rank_zero_info(f"zeus: power limit {summary.describe(point)}")
            self.loop.log(summary.metrics(point))
        elif merged.disturbance:
            ranks = [str(rank) for rank, window in enumerate(windows) if window.disturbance]
            rank_zero_warn(
                f"zeus: the measurement at a power limit of {limit_w} W is void, because "
                f"{DESCRIPTIONS[merged.disturbance]} (rank {', '.join(ranks)})"
            )
        self._do(profiler, actions)

    def _finish(self, done: Done, profiler: Profiler) -> None:
        """Apply and store what was measured, or restore the limits if nothing was chosen."""
        self._profiler = None
        limit_w, points, selector = done.limit_w, profiler.points, self.options.selector
        if limit_w is None and self._is_check and self.result.limit_w is not None:
            rank_zero_warn(f"zeus: the power limit is not checked: {done.reason}")
            self._apply(self._applied, self.result.limit_w)
            return
        if limit_w is None:
            rank_zero_warn(f"zeus: no power limit is chosen: {done.reason}; {self._restore()}")
            return
        if not self.options.apply:
            return
        zeus_cost = selector if isinstance(selector, ZeusCost) else ZeusCost()
        cost = partial(zeus_cost.cost, inputs=self._inputs)
        rank_zero_info(
            "zeus: the power limits measured, with energy and time against the highest\n"
            + summary.table(points, limit_w, selector.name, cost)
        )
        self._apply(points, limit_w, time_noise(profiler.windows))
        if (store := self._store) is None or self._is_check:
            return
        self.result.profile = PowerProfile(
            **asdict(store.key),
            **asdict(self._inputs),
            driver=self.gpus.driver,
            points=points,
            chosen_w=limit_w,
            selector=selector.name,
            search=self.options.search,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            windows=tuple(
                MeasuredWindow(**asdict(window), saves=proposal.saves, costs=proposal.costs)
                for window, proposal in zip(profiler.windows, profiler.proposals, strict=True)
            ),
        )
        if self.loop.strategy.is_global_zero:
            store.save(self.result.profile)  # last: the service may be slow

    def _restore(self) -> str:
        """Restore the limits on all ranks; return at which limits training continues."""
        restored = self.gpus.restore()
        left = gather(self.loop.strategy, None if restored else self._in_force())
        ranks = [f"{text} on rank {rank}" for rank, text in enumerate(left) if text is not None]
        if not ranks:
            return "training continues at the limits found at the start"
        return f"training continues at another limit than the one found: {', '.join(ranks)}"

    def _in_force(self) -> str:
        try:
            return f"{self.gpus.in_force_w()} W"
        except ZeusPowerError:
            return "one that cannot be read"

    def _apply(self, points: Sequence[PowerPoint], chosen_w: int, noise: float = 0.0) -> None:
        """Set a limit for the rest of the run, on all ranks or on none."""
        failures = gather(self.loop.strategy, not self.gpus.set_w(chosen_w))
        ranks = [str(rank) for rank, failed in enumerate(failures) if failed]
        if ranks:
            rank_zero_warn(
                f"zeus: the power limit of {chosen_w} W cannot be set on rank "
                f"{', '.join(ranks)}; {self._restore()}"
            )
            self._epochs = None
            return
        self.result.limit_w = chosen_w
        self._applied, self._epochs = tuple(points), EpochTimes(noise)
        chosen = next(point for point in points if point.limit_w == chosen_w)
        self.loop.log(summary.metrics(chosen))


def open_fit(options: PowerOptions, loop: Loop, result: PowerResult) -> PowerFit | None:
    """Open this rank's GPUs, and prepare to set their limits, before the first step.

    Returns:
        None if a rank has no GPU, or its power cannot be controlled: training continues without
        a search.
    """
    if options.apply and is_control():
        options = replace(options, apply=False)
    service = partial(find_service, options.url, options.job_id, options.token, loop.recurring)
    on_every_rank(loop.strategy, service)  # raises for a wrong url or job_id
    if (missing := _missing_gpus(options, loop.strategy)) is not None:
        if options.on_no_gpu == "error":
            raise ZeusPowerError(missing, {"cause": "no_gpu"})
        rank_zero_warn(f"zeus: {missing}; no power limit is searched for")
        return None
    try:
        gpus = _open_gpus(options, loop.strategy)
    except ZeusPowerError as error:
        cause = error.fields.get("cause")
        if cause == "no_power_control":
            rank_zero_warn(f"zeus: {error.message}; training continues at the limit in force")
            return None
        may_observe = options.apply and options.on_no_permission == "observe"
        if may_observe and cause in ("no_permission", "no_record", "zeusd"):
            rank_zero_warn(f"zeus: {error.message}; observing only")
            return open_fit(replace(options, apply=False), loop, result)
        raise
    return PowerFit(options, loop, gpus, result)


def _missing_gpus(options: PowerOptions, strategy: Strategy) -> str | None:
    """The ranks whose machine has no such GPU, as text; None if each has one."""
    kind = options.meter.partition(":")[0] if isinstance(options.meter, str) else None
    if kind not in ("nvml", "amd", "auto"):
        return None
    rocm = kind == "amd" or (kind == "auto" and amd.torch_is_rocm())
    found = gather(strategy, (amd if rocm else nvml).finds_gpu())
    ranks = [str(rank) for rank, has_gpu in enumerate(found) if not has_gpu]
    if not ranks:
        return None
    where = (
        "this machine" if len(ranks) == len(found) else f"the machine of rank {', '.join(ranks)}"
    )
    return f"{where} has no {'AMD' if rocm else 'NVIDIA'} GPU, or no driver for it"


def _open_gpus(options: PowerOptions, strategy: Strategy) -> Gpus:
    """Open the GPUs of all ranks, or of none."""
    with ExitStack() as close_on_error:
        zeusd = on_every_rank(strategy, lambda: find_zeusd(options.zeusd))
        open_here = partial(Gpus, options.meter, strategy.root_device, zeusd)
        gpus = on_every_rank(strategy, lambda: close_on_error.enter_context(closing(open_here())))
        check_own(gather(strategy, gpus.uuids))
        ranges = gather(strategy, (gpus.min_w, gpus.max_w))
        check_ranges({f"rank {rank}": (low, high) for rank, (low, high) in enumerate(ranges)})
        power_limits(gpus.min_w, gpus.max_w, options.step_w)  # raises for a wrong step_w
        if options.apply:
            on_every_rank(strategy, gpus.take_control)
            if zeusd is not None:
                rank_zero_info(f"zeus: power limits are set and restored through {zeusd}")
        elif is_control():
            on_every_rank(strategy, gpus.restore_left)
        close_on_error.pop_all()
    return gpus
