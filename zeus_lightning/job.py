"""`JobArguments`: what a callback was told of its job, and the job it makes of a program."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Literal

from lightning.pytorch import LightningModule, Trainer

from zeus_lightning import batch_size as sizes
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.lr_scaling import LRScaling, find_lr
from zeus_lightning.messages import MAX_METRIC, JobSpec
from zeus_lightning.run_meter import RunMeter

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """The arguments of `ZeusBSOCallback` that make the job; see there for what they mean.

    Raises:
        ZeusConfigError: One cannot work, whatever the program.
    """

    target_metric: float
    monitor: str
    mode: Literal["min", "max"]
    job_id: str | None
    batch_sizes: list[int] | None
    default_batch_size: int | None
    batch_size_scope: sizes.Scope
    max_epochs: int | None
    eta_knob: float
    beta_knob: float | None
    num_pruning_rounds: int
    window_size: int
    policy: str | None
    seed: int | None
    lr_scaling: LRScaling | None

    def __post_init__(self) -> None:
        if self.job_id is not None:
            _check_job_id(self.job_id)
        if self.batch_sizes is not None:
            sizes.positive_sizes(self.batch_sizes)
        if self.default_batch_size is not None:
            default_ok = sizes.is_size(self.default_batch_size)
            _check(default_ok, "default_batch_size", self.default_batch_size, "a positive integer")
            _check_default(self.default_batch_size, self.batch_sizes)
        for name in ("target_metric", "eta_knob", "beta_knob"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            _check(number or value is None, name, value, "a number")
        for name in ("max_epochs", "num_pruning_rounds", "window_size", "seed"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            _check(whole or value is None, name, value, "an integer")
        max_epochs, beta_knob, seed = self.max_epochs, self.beta_knob, self.seed
        beta_ok = beta_knob is None or 0 < beta_knob < math.inf
        lr_ok = self.lr_scaling in (None, "linear", "sqrt")
        _check(bool(self.monitor), "monitor", self.monitor, "a metric's name")
        target_ok = abs(self.target_metric) <= MAX_METRIC
        _check(
            target_ok,
            "target_metric",
            self.target_metric,
            f"finite, at most {MAX_METRIC:g} in size",
        )
        scope_ok = self.batch_size_scope in ("global", "per_device")
        _check(scope_ok, "batch_size_scope", self.batch_size_scope, "'global' or 'per_device'")
        _check(self.mode in ("min", "max"), "mode", self.mode, "'min' or 'max'")
        _check(max_epochs is None or max_epochs > 0, "max_epochs", max_epochs, "positive")
        _check(0 <= self.eta_knob <= 1, "eta_knob", self.eta_knob, "in [0, 1]")
        _check(beta_ok, "beta_knob", beta_knob, "positive and finite, or None")
        rounds = self.num_pruning_rounds
        _check(0 <= rounds <= 100, "num_pruning_rounds", rounds, "0 to 100")
        _check(0 <= self.window_size <= 1000, "window_size", self.window_size, "0 to 1000")
        _check(seed is None or 0 <= seed < 2**32, "seed", seed, "0 to 2**32 - 1")
        _check(lr_ok, "lr_scaling", self.lr_scaling, "'linear', 'sqrt' or None")

    def job(self, trainer: Trainer, module: LightningModule, meter: RunMeter) -> JobSpec:
        """The job of these arguments and a program, measured with a meter.

        Raises:
            ZeusConfigError: They do not go together.
        """
        job_id = self.job_id or os.environ.get("ZEUS_JOB_ID") or type(module).__name__
        _check_job_id(job_id, "job_id (by default the module's class name)")
        max_epochs = self.max_epochs or trainer.max_epochs or 0
        if max_epochs < 1:
            raise ZeusConfigError(
                f"the Trainer's max_epochs is {trainer.max_epochs}, so a run that never reaches "
                "its target would never fail; pass max_epochs=... to the Trainer or this callback"
            )
        if self.lr_scaling is not None:
            find_lr(module)
        share = sizes.share(trainer, self.batch_size_scope)
        found = sizes.find_batch_size(trainer, module) * share
        default = self.default_batch_size or found
        chosen = sizes.default_sizes(default, share)
        if self.batch_sizes is not None:
            chosen = sizes.positive_sizes(self.batch_sizes)
        sizes.check_shares([*chosen, default], share)
        _check_default(default, chosen)
        return JobSpec(
            job_id=job_id,
            batch_sizes=chosen,
            default_batch_size=default,
            target_metric=float(self.target_metric),
            higher_is_better=self.mode == "max",
            monitor=self.monitor,
            max_epochs=max_epochs,
            max_power_w=meter.max_power_w,
            num_devices=trainer.world_size,
            device_model=meter.device_model,
            meter=meter.name,
            eta_knob=float(self.eta_knob),
            beta_knob=None if self.beta_knob is None else float(self.beta_knob),
            num_pruning_rounds=self.num_pruning_rounds,
            window_size=self.window_size,
            policy=self.policy,
            seed=self.seed,
        )


def _check(valid: bool, name: str, value: object, rule: str) -> None:
    if not valid:
        raise ZeusConfigError(f"{name} is {value!r}; it must be {rule}")


def _check_job_id(job_id: str, name: str = "job_id") -> None:
    rule = "1 to 255 letters, digits and ._:-, starting with a letter or digit"
    _check(_JOB_ID.fullmatch(job_id) is not None, name, job_id, rule)


def _check_default(default: int, batch_sizes: list[int] | None) -> None:
    if batch_sizes is not None and default not in batch_sizes:
        raise ZeusConfigError(
            f"the default batch size {default} is not among batch_sizes {batch_sizes}; "
            "add it, or pass another default_batch_size=..."
        )
