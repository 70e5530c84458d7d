"""`ZeusPowerLimitCallback`: train at the GPU power limit with the lowest cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from zeus_lightning.meters import EnergyMeter
from zeus_lightning.power.fit import PowerFit, open_fit
from zeus_lightning.power.options import PowerArguments, PowerResult, read_arguments
from zeus_lightning.power.profile import PowerProfile
from zeus_lightning.power.search import SearchName
from zeus_lightning.power.selectors import Selector
from zeus_lightning.power.trainer_loop import TrainerLoop
from zeus_lightning.program.internals import check_internals
from zeus_lightning.program.trained_modules import check_alone
from zeus_lightning.run.gloo_at_exit import destroy_gloo_at_exit

if TYPE_CHECKING:  # LightningCLI masks values of this type in the configs that it saves
    from jsonargparse.typing import SecretStr


class ZeusPowerLimitCallback(Callback):
    """Find the GPU power limit that a selector rates best while training runs, and train at it.

    Limits are set one after another, and measured over whole training batches; then the best one is
    set for the rest of the run. The measurements are stored for later runs, in a file or at the
    service, for each batch size and GPU model: a run that finds them measures nothing and sets the
    limit before its first step. The limits found at the start are restored however training ends;
    after a SIGKILL, the next run restores them, or `zeus-lightning reset-power-limits`.

    The callback works on its own or together with `ZeusBSOCallback`; in the latter case it uses
    that callback's `eta_knob`, service and job. Each rank sets the limit of its own GPU; the limit
    is the same on all ranks.

    It logs `zeus/power_limit_w`, `zeus/step_power_w` and `zeus/step_energy_j` for each limit that
    it measures, and for the one that it sets for the rest of the run. Its attributes `profiled`,
    `profile` and `limit_w` stay in the ranks' processes under `ddp_spawn` and `ddp_fork`.

    Args:
        selector: Which limit is best: `energy`, `time`, `zeus-cost`, `max-slowdown:1.1`, or a
            selector object; see `zeus_lightning.power.selectors`.
        search: `information` measures as long as a measurement is expected to save more over the
            rest of the run than it costs; `sweep` measures all limits, once.
        step_w: Watts between two limits, at most the range of the GPU's limits.
        wait_steps: Training batches before the first limit is set.
        warmup_steps: Batches between setting a limit and measuring.
        profile_steps: Minimum number of batches that are measured.
        min_seconds: Minimum time that is measured, in seconds: NVML refreshes its energy counter
            only every 20 to 100 ms.
        profile_path: JSON file, read if it exists, written after measuring.
        url: The service with which profiles are shared. Default: `ZeusBSOCallback`'s; without it
            and with a `job_id`, `$ZEUS_SERVER_URL`.
        job_id: The service's job. Default: `ZeusBSOCallback`'s.
        token: The service's token. Default: `ZeusBSOCallback`'s if it uses the same service, or
            else `$ZEUS_BSO_TOKEN`.
        apply: Whether limits are set. If not, the callback only reports what a batch takes at the
            limit in force, or which limit it would set if there is a profile.
        on_no_gpu: What to do on a machine without an NVIDIA GPU or its driver: `warn`, and do
            nothing, so that one script runs on a laptop and on a cluster, or raise an `error`.
        on_no_permission: What to do if limits cannot be set, or the limits found cannot be stored:
            `raise` an error before the first step, or `observe`, the same as `apply=False`.
        meter: `nvml`, the GPU that trains; `nvml:0,1` (NVML indices or UUIDs), for a run that
            trains on the CPU; or an `EnergyMeter` of GPUs.
        zeusd: Address of Zeus's daemon, which sets the limits for a process that may not: the path
            of its Unix socket, or `host:port` with `$ZEUSD_TOKEN`. Default: `$ZEUSD_SOCK_PATH` or
            `$ZEUSD_HOST_PORT`; without them, the process sets them itself.

    Raises:
        ZeusConfigError: An argument is invalid, or the GPUs have different ranges of limits.
        ZeusMeterError: The energy of the GPUs cannot be read.
        ZeusPowerError: Their power limits cannot be set, or another run sets them already; or there
            is no GPU, with `on_no_gpu="error"`.

    Example::

        trainer = Trainer(max_epochs=10, callbacks=[ZeusPowerLimitCallback("max-slowdown:1.1")])
        trainer.fit(Net(), datamodule=Digits())
    """

    def __init__(
        self,
        selector: str | Selector = "zeus-cost",
        search: SearchName = "information",
        step_w: int = 25,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        min_seconds: float = 2.0,
        profile_path: str | Path | None = None,
        url: str | None = None,
        job_id: str | None = None,
        token: SecretStr | str | None = None,
        apply: bool = True,
        on_no_gpu: Literal["warn", "error"] = "warn",
        on_no_permission: Literal["raise", "observe"] = "raise",
        meter: str | EnergyMeter = "nvml",
        zeusd: str | None = None,
    ) -> None:
        super().__init__()
        arguments = PowerArguments(
            selector=selector,
            search=search,
            step_w=step_w,
            wait_steps=wait_steps,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            min_seconds=min_seconds,
            profile_path=profile_path,
            url=url,
            job_id=job_id,
            token=token,
            apply=apply,
            on_no_gpu=on_no_gpu,
            on_no_permission=on_no_permission,
            meter=meter,
            zeusd=zeusd,
        )
        self._options = read_arguments(arguments)
        self._result = PowerResult()
        self._fit: PowerFit | None = None
        self._trainer: Trainer | None = None  # whose fit it is

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or pickle: that of the callback without its running fit."""
        return vars(self) | {"_fit": None, "_trainer": None}

    @property
    def profiled(self) -> bool:
        """Whether the last `fit` measured limits."""
        return self._result.profiled

    @property
    def profile(self) -> PowerProfile | None:
        """The measurements of the last `fit`'s batch size and GPUs; None if there are none."""
        return self._result.profile

    @property
    def limit_w(self) -> int | None:
        """The limit chosen in the last `fit`, in watts; None if none was set."""
        return self._result.limit_w

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            check_internals(trainer)
            if self._fit is not None and self._trainer is not None:
                check_alone(trainer, earlier=self._trainer)
            self._end()  # a previous fit that never ended because another callback raised
            self._result, self._trainer = PowerResult(), trainer
            destroy_gloo_at_exit()
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                self._fit = open_fit(self._options, TrainerLoop(trainer), self._result)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.start()

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.batch_started()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._fit is not None:
            self._fit.batch_ended()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._interrupted()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.resumed_training()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.epoch_started()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.epoch_ended()

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._interrupted()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._end_of(trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._end_of(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._result.state_dict()

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._fit is not None:
            self._fit.resume(state_dict)

    def _interrupted(self) -> None:
        if self._fit is not None:
            self._fit.interrupted()

    def _end_of(self, trainer: Trainer) -> None:
        if self._trainer is trainer:
            self._end()

    def _end(self) -> None:
        if self._fit is not None:
            self._fit.close()
            self._fit = self._trainer = None
