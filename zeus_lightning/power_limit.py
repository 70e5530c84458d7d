"""`ZeusPowerLimitCallback`: train at the GPU power limit that costs least."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from zeus_lightning import batch_size as sizes
from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.client import BSOClient
from zeus_lightning.distributed import gather, on_every_rank, on_rank_zero
from zeus_lightning.errors import ZeusConfigError, ZeusPowerError
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.power import report
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.profiler import (
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
from zeus_lightning.power.search import Search, SearchName, make_search, power_limits
from zeus_lightning.power.selectors import (
    PowerPoint,
    Selector,
    SelectorInputs,
    ZeusCost,
    parse_selector,
)
from zeus_lightning.power.shelf import Found, Shelf

if TYPE_CHECKING:  # importing NVML's bindings is not needed before the first fit
    from zeus_lightning.power.gpus import Gpus


class ZeusPowerLimitCallback(Callback):
    """Find the GPU power limit that a selector likes best while training runs, and train at it.

    From the highest limit down, one limit after another is set and measured over whole training
    batches, then the best one is applied for the rest of the run. What was measured is kept for the
    next run: in a file, or by the service, for each batch size and GPU model; such a run measures
    nothing and applies the limit from its first step. The limits found at the start are put back
    however training ends; after a SIGKILL the next run does it, or
    `zeus-lightning reset-power-limits`.

    Works alone, and beside `ZeusBSOCallback`, from which it then takes `eta_knob`, the service and
    the job. Every rank sets the limit of its own GPU, all to the same.

    It logs `zeus/power_limit_w`, and of a training batch at that limit `zeus/step_power_w` and
    `zeus/step_energy_j`, when it has measured a limit and when it applies one.

    Args:
        selector: What is best: `energy`, `time`, `zeus-cost`, `max-slowdown:1.1`, or a selector
            object; see `zeus_lightning.power.selectors`.
        search: `golden` measures few limits, `sweep` all of them.
        step_w: Watts between two limits, at most the range of the GPU's.
        wait_steps: Training batches before anything is done.
        warmup_steps: Batches between setting a limit and measuring.
        profile_steps: Batches that are measured, at least.
        min_seconds: Seconds that are measured, at least: NVML refreshes its energy counter only
            every 20 to 100 ms.
        profile_path: JSON file: read if it exists, written when profiling is done.
        url: The service, to share profiles. Default: `ZeusBSOCallback`'s; alone, with a `job_id`,
            `$ZEUS_SERVER_URL`.
        job_id: The service's job. Default: `ZeusBSOCallback`'s.
        apply: Whether limits are set. If not, nothing is changed: it reports what a batch takes at
            the limit in force, and what would be set where a profile tells it.
        on_no_permission: Where limits cannot be set or remembered: `raise` an error before the
            first step, or `observe` as with `apply=False`.
        meter: As `ZeusBSOCallback`'s, but GPUs only: `nvml`, the one that trains; `nvml:0,1` (NVML
            indices or UUIDs), for a run that trains on the CPU; or an `EnergyMeter` of GPUs.

    Attributes:
        profiled: Whether the last `fit` paid for measuring limits.
        profile: What is known of this batch size on these GPUs; None before.
        limit_w: The limit that the last `fit` trained at once it was chosen; None where none was.
            Under `ddp_spawn` and `ddp_fork` all three stay in the processes that trained.

    Raises:
        ZeusConfigError: An argument cannot work, or the GPUs have different ranges of limits.
        ZeusMeterError: The energy of the GPUs cannot be read.
        ZeusPowerError: Their power limits cannot be set, or another run does it already.

    Example::

        trainer = Trainer(max_epochs=10, callbacks=[ZeusPowerLimitCallback("max-slowdown:1.1")])
        trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(
        self,
        selector: str | Selector = "zeus-cost",
        search: SearchName = "golden",
        step_w: int = 25,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        min_seconds: float = 2.0,
        profile_path: str | Path | None = None,
        url: str | None = None,
        job_id: str | None = None,
        apply: bool = True,
        on_no_permission: Literal["raise", "observe"] = "raise",
        meter: str | EnergyMeter = "nvml",
    ) -> None:
        super().__init__()
        self._selector = parse_selector(selector)
        self._settings = ProfilerSettings(
            step_w=step_w,
            wait_steps=wait_steps,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            min_seconds=min_seconds,
        )
        make_search(search, [1], self._selector, SelectorInputs(max_power_w=1))  # is it known?
        if on_no_permission not in ("raise", "observe"):
            raise ZeusConfigError(
                f"on_no_permission is {on_no_permission!r}; it must be 'raise' or 'observe'"
            )
        if url is not None:
            BSOClient(url)
        self._search = search
        self._path = None if profile_path is None else Path(profile_path)
        self._url = url
        self._job_id = job_id
        self._apply = apply
        self._on_no_permission = on_no_permission
        self._meter = meter
        self._gpus: Gpus | None = None
        self._restored: PowerProfile | None = None
        self._forget_last_fit()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._release()  # what is left of a fit whose end another callback has broken off
            self._forget_last_fit()
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                self._check_service(trainer)
                self._take_gpus(trainer)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._gpus is not None:
            self._begin(trainer, self._gpus)

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._profiler is not None:
            self._look_for_checkpoints(trainer)
            self._act(trainer, self._profiler.batch_started())

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._profiler is not None:
            self._act(trainer, self._profiler.batch_ended())

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._interrupted(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._interrupted(trainer)

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._interrupted(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._release()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._release()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self.profile is None else {"profile": self.profile.to_json()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        try:
            self._restored = PowerProfile.from_json(state_dict["profile"])
        except (KeyError, ZeusConfigError) as error:
            rank_zero_warn(f"zeus: the checkpoint's power profile cannot be used: {error}")

    # --- the start -------------------------------------------------------------------------------

    def _forget_last_fit(self) -> None:
        self.profiled = False
        self.profile: PowerProfile | None = None
        self.limit_w: int | None = None
        self._restored = None
        self._profiler: Profiler | None = None
        self._shelf = Shelf(None, None, None)
        self._num_devices = 1
        self._batch_size: int | None = None
        self._inputs = SelectorInputs(max_power_w=1)
        self._observing = not self._apply
        self._saves: tuple[int, ...] = ()

    def _check_service(self, trainer: Trainer) -> None:
        beside = _bso(trainer) is not None
        if self._url is not None and self._job_id is None and not beside:
            raise ZeusConfigError(
                f"url is {self._url!r}, but there is no job_id, and no ZeusBSOCallback to take it "
                "from: pass job_id=..."
            )
        url = self._url or os.environ.get("ZEUS_SERVER_URL")
        if self._job_id is not None and not url and not beside:
            raise ZeusConfigError(
                f"job_id is {self._job_id!r}, but there is no service: pass url=..., or set "
                "$ZEUS_SERVER_URL"
            )

    def _take_gpus(self, trainer: Trainer) -> None:
        """Open this rank's GPUs, and take their limits on loan, before the first step."""
        from zeus_lightning.power.gpus import Gpus, check_ranges

        strategy = trainer.strategy

        def open_gpus() -> Gpus:
            self._gpus = Gpus(self._meter, strategy.root_device)
            return self._gpus

        try:
            gpus = on_every_rank(strategy, open_gpus)
            ranges = gather(strategy, (gpus.min_w, gpus.max_w))
            check_ranges({f"rank {rank}": (low, high) for rank, (low, high) in enumerate(ranges)})
            power_limits(gpus.min_w, gpus.max_w, self._settings.step_w)
            if not self._observing:
                _warn_of(on_every_rank(strategy, gpus.borrow))
        except ZeusPowerError as error:
            self._cannot_set(error)

    def _cannot_set(self, error: ZeusPowerError) -> None:
        """Go on as told where limits cannot be set, the same way on all ranks."""
        why = error.fields.get("why")
        if why == "no_power_control":  # and nobody could give it
            rank_zero_warn(f"zeus: {error.message}; training goes on at the limit in force")
            self._release()
        elif why in ("no_permission", "no_record") and self._on_no_permission == "observe":
            rank_zero_warn(f"zeus: {error.message}; observing only")
            self._observing = True
            self._put_back()
        else:
            raise error

    def _begin(self, trainer: Trainer, gpus: Gpus) -> None:
        """Apply what is known of this batch size, or begin to measure."""
        strategy = trainer.strategy
        bso = _bso(trainer)
        in_force_w = on_every_rank(strategy, gpus.in_force_w)
        facts = gather(strategy, (gpus.count, gpus.count * gpus.max_w, in_force_w))
        self._num_devices = int(sum(fact[0] for fact in facts))
        eta_knob = 0.5 if bso is None or bso.job is None else bso.job.eta_knob
        self._inputs = SelectorInputs(eta_knob=eta_knob, max_power_w=sum(fact[1] for fact in facts))
        self._batch_size = sizes.trained_size(trainer)
        found = on_rank_zero(strategy, lambda: self._look_for_profile(bso, gpus))
        if found.profile is not None:
            self._use(trainer, gpus, found.profile)
        elif self._observing:
            highest_w = int(max(fact[2] for fact in facts))
            rank_zero_info(
                f"zeus: observing the power limit in force, {highest_w} W; no profile tells which "
                "would be best"
            )
            self._profile(trainer, lambda points: None if points else highest_w)
        else:
            limits_w = power_limits(gpus.min_w, gpus.max_w, self._settings.step_w)
            self._profile(trainer, self._make_search(limits_w, found.neighbour))

    def _look_for_profile(self, bso: ZeusBSOCallback | None, gpus: Gpus) -> Found:
        """What is known of this batch size on these GPUs; called on rank zero only."""
        batch_size = self._batch_size
        if batch_size is None:
            rank_zero_warn(
                "zeus: the global batch size cannot be seen, or changes in mid-run, so power "
                "profiles are neither looked for nor kept"
            )
            return Found()
        self._shelf = Shelf(self._path, *self._service(bso))
        if self._restored is not None:
            with suppress(ZeusConfigError):  # another machine's, say
                self._restored.check_fits(
                    device_model=gpus.device_model,
                    num_devices=self._num_devices,
                    batch_size=batch_size,
                )
                return Found(profile=self._restored)
        return self._shelf.find(gpus.device_model, self._num_devices, batch_size)

    def _service(self, bso: ZeusBSOCallback | None) -> tuple[BSOClient | None, str | None]:
        """The service and the job there, this callback's own or `ZeusBSOCallback`'s."""
        job_id = self._job_id
        if job_id is None and bso is not None and bso.job is not None:
            job_id = bso.job.job_id
        if self._url is not None:
            return BSOClient(self._url), job_id
        if bso is not None:
            return bso.client, job_id
        url = os.environ.get("ZEUS_SERVER_URL")
        return (BSOClient(url), job_id) if url and job_id else (None, None)

    def _make_search(self, limits_w: Sequence[int], neighbour: PowerProfile | None) -> Search:
        start_w = None
        if neighbour is not None:
            start_w = neighbour.choose_again(self._selector, self._inputs).chosen_w
            rank_zero_info(
                f"zeus: the search for the power limit starts from {start_w} W, the best one of "
                f"batch size {neighbour.batch_size}"
            )
        return make_search(self._search, limits_w, self._selector, self._inputs, start_w)

    # --- measuring -------------------------------------------------------------------------------

    def _profile(self, trainer: Trainer, search: Search) -> None:
        select = partial(self._selector.select, inputs=self._inputs)
        self._profiler = Profiler(search, select, self._settings)
        self._saves = _saves(trainer)

    def _interrupted(self, trainer: Trainer) -> None:
        if self._profiler is not None:
            self._act(trainer, self._profiler.interrupted())

    def _look_for_checkpoints(self, trainer: Trainer) -> None:
        """Weights alone are saved without a hook being called."""
        saves = _saves(trainer)
        if saves != self._saves:
            self._saves = saves
            self._interrupted(trainer)

    def _act(self, trainer: Trainer, actions: Iterable[Action]) -> None:
        """Do what the profiler says; all ranks do the same at the same batch."""
        assert self._gpus is not None
        for action in actions:
            match action:
                case SetLimit(limit_w):
                    self.profiled = not self._observing
                    self._gpus.set_w(limit_w)
                case StartWindow():
                    self._gpus.start_window()
                case EndWindow():
                    self._measured(trainer, self._gpus.end_window())
                case Done():
                    self._finish(trainer, self._gpus, action)

    def _measured(self, trainer: Trainer, window: Window) -> None:
        """Merge a window over the ranks, and go on with what the profiler makes of it."""
        profiler = self._profiler
        assert profiler is not None
        values = (window.energy_j, window.time_s, float(window.disturbance))
        ranks = [
            Window(energy_j, time_s, Disturbance(int(disturbance)))
            for energy_j, time_s, disturbance in gather(trainer.strategy, values)
        ]
        merged, limit_w, known = merge(ranks), profiler.limit_w, len(profiler.points)
        actions = profiler.measured(merged)
        if len(profiler.points) > known:
            point = profiler.points[-1]
            rank_zero_info(f"zeus: power limit {report.line(point)}")
            _log(trainer, point)
        elif merged.disturbance:
            where = [rank for rank, window in enumerate(ranks) if window.disturbance]
            rank_zero_warn(
                f"zeus: the measurement at a power limit of {limit_w} W is void, because "
                f"{merged.disturbance.told} (rank {', '.join(map(str, where))})"
            )
        self._act(trainer, actions)

    def _finish(self, trainer: Trainer, gpus: Gpus, done: Done) -> None:
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        if done.limit_w is None:
            rank_zero_warn(
                f"zeus: no power limit is chosen: {done.reason}; training goes on at the limits "
                "found at the start"
            )
            self._put_back()
        elif not self._observing:
            rank_zero_info(
                "zeus: the power limits measured, with energy and time against the highest\n"
                + report.table(profiler.points, done.limit_w, self._selector.name, self._cost())
            )
            chosen = next(point for point in profiler.points if point.limit_w == done.limit_w)
            self._set_for_good(trainer, gpus, chosen)
            self._keep(trainer, gpus, profiler.points, done.limit_w)  # the service may take a while

    def _cost(self) -> Callable[[PowerPoint], float]:
        """Zeus's cost of a batch, for a person, whatever selects."""
        selector = self._selector if isinstance(self._selector, ZeusCost) else ZeusCost()
        return partial(selector.cost, inputs=self._inputs)

    def _keep(
        self, trainer: Trainer, gpus: Gpus, points: Sequence[PowerPoint], limit_w: int
    ) -> None:
        if self._batch_size is None:
            return
        self.profile = profile = PowerProfile(
            device_model=gpus.device_model,
            driver=gpus.driver,
            num_devices=self._num_devices,
            batch_size=self._batch_size,
            points=tuple(points),
            chosen_w=limit_w,
            selector=self._selector.name,
            eta_knob=self._inputs.eta_knob,
            max_power_w=self._inputs.max_power_w,
            search=self._search,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if trainer.is_global_zero:
            self._shelf.save(profile)

    # --- applying, and putting back --------------------------------------------------------------

    def _use(self, trainer: Trainer, gpus: Gpus, profile: PowerProfile) -> None:
        """Apply a profile's limit, as this run's selector chooses it, from the first step."""
        self.profile = profile = profile.choose_again(self._selector, self._inputs)
        by = (
            f"as {self._selector.name} chooses of the power profile of {profile.measured_at}: "
            f"{report.saving(profile.points, profile.chosen_w)}"
        )
        if self._observing:
            rank_zero_info(f"zeus: would set the power limit to {profile.chosen_w} W, {by}")
            return
        rank_zero_info(f"zeus: the power limit is {profile.chosen_w} W, {by}")
        chosen = next(p for p in profile.points if p.limit_w == profile.chosen_w)
        self._set_for_good(trainer, gpus, chosen)

    def _set_for_good(self, trainer: Trainer, gpus: Gpus, chosen: PowerPoint) -> None:
        """Set the limit for the rest of the run; where one rank cannot, none has it."""
        failed = gather(trainer.strategy, (float(not gpus.set_w(chosen.limit_w)),))
        where = [rank for rank, (failure,) in enumerate(failed) if failure]
        if where:
            rank_zero_warn(
                f"zeus: the power limit of {chosen.limit_w} W cannot be set on rank "
                f"{', '.join(map(str, where))}; training goes on at the limits found at the start"
            )
            self._put_back()
            return
        self.limit_w = chosen.limit_w
        _log(trainer, chosen)

    def _put_back(self) -> None:
        if self._gpus is not None:
            _warn_of(self._gpus.give_back())

    def _release(self) -> None:
        self._profiler = None
        self._put_back()
        if self._gpus is not None:
            self._gpus.close()
        self._gpus = None


def _bso(trainer: Trainer) -> ZeusBSOCallback | None:
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return next((c for c in callbacks if isinstance(c, ZeusBSOCallback)), None)


def _saves(trainer: Trainer) -> tuple[int, ...]:
    """When each of Lightning's checkpoint callbacks has last saved."""
    return tuple(
        getattr(callback, "_last_global_step_saved", 0) for callback in trainer.checkpoint_callbacks
    )


def _warn_of(told: Iterable[str]) -> None:
    """Each rank speaks for its own GPU."""
    for text in told:
        warnings.warn(f"zeus: {text}", stacklevel=3)


def _log(trainer: Trainer, point: PowerPoint) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(
            report.figures(point), step=trainer.fit_loop.epoch_loop._batches_that_stepped
        )
