"""`Recurrence`: one run of a recurring job, for a training loop that its author owns."""

from __future__ import annotations

import os
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from zeus_lightning.client import BSOClient, connect, plain_token
from zeus_lightning.environment import EXIT_TRY_AGAIN, OnFailure, on_failure_of
from zeus_lightning.errors import ZeusConfigError, ZeusServiceUnavailable
from zeus_lightning.messages import JobSpec, Outcome, TrialStart
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program import batch_size as sizes
from zeus_lightning.program.job import JobArguments
from zeus_lightning.program.metric import contradiction, shortest_decimal
from zeus_lightning.ranks.distributed import gather, is_watched, on_every_rank
from zeus_lightning.ranks.run_meter import RunMeter
from zeus_lightning.ranks.torch_ranks import TorchRanks
from zeus_lightning.sigterm import exit_on_sigterm
from zeus_lightning.trial.checkpoint import SavedTrial
from zeus_lightning.trial.open_trial import OpenTrial
from zeus_lightning.trial.outcome import outcome_of, reason_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Reply:
    """The answer to a report.

    Args:
        stop: Whether training shall end: the target is reached, or the batch size has failed.
        outcome: How the trial ended; None while it runs.
        cost: Cost so far, in joules; None without a trial.
    """

    stop: bool
    outcome: Outcome | None
    cost: float | None


class Recurrence:
    """One run of a recurring job, in a loop of Fabric's, of torch's or of another library's.

    It is to such a loop what `ZeusBSOCallback` is to a Trainer: it asks the service for a batch
    size as the block is entered, measures, reports, and ends the trial as the block is left,
    whichever way. All ranks enter it, report and leave it together; rank zero asks the service.

    Args:
        url: The service. Default: `$ZEUS_SERVER_URL`.
        target_metric: What the metric has to reach.
        batch_sizes: The batch sizes to choose from, over all ranks.
        default_batch_size: The one to begin with; one of them.
        max_epochs: Reports after which the batch size has failed.
        job_id: The job. Default: `$ZEUS_JOB_ID`, else an error.
        monitor: The metric's name, which the service shows.
        mode: `max` if the metric rises to the target, `min` if it falls.
        fabric: Fabric, after `launch()`; its device is this rank's.
        device: Without Fabric, the device on which this rank trains. Default: the CPU.
        state: `state_dict()` of an earlier run's checkpoint: its trial is resumed, with the energy
            and time that it had spent. If it had none, a trial is started. Rank zero's counts.
        meter: As for `ZeusBSOCallback`, as are the others: `pue`, `allow_mixed_devices`,
            `eta_knob`, `beta_knob`, `num_pruning_rounds`, `window_size`, `policy`, `seed`, `token`,
            `strict`.
        on_failure: `raise`: a failed batch size is a `ZeusTrialFailed` as the block is left;
            `stop`: it is a warning, and `outcome` says it. `exit`: the process ends with exit
            status 75, out of memory, too; with several ranks, see docs/recurring.md. Default:
            `$ZEUS_ON_FAILURE`, else `raise`.

    Attributes:
        batch_size: The batch size of this run, over all ranks.
        local_batch_size: This rank's part of it, for its dataloader.

    Raises:
        ZeusError: As `ZeusBSOCallback` does in `Trainer.fit`.

    Example::

        with Recurrence(url, job_id="digits", target_metric=0.95, batch_sizes=[32, 64],
                        default_batch_size=32, max_epochs=20, fabric=fabric) as run:
            loader = fabric.setup_dataloaders(DataLoader(data, batch_size=run.local_batch_size))
            for epoch in range(20):
                train(loader)
                if run.report(validate()).stop:
                    break
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        target_metric: float,
        batch_sizes: list[int],
        default_batch_size: int,
        max_epochs: int,
        job_id: str | None = None,
        monitor: str = "metric",
        mode: Literal["min", "max"] = "max",
        fabric: Fabric | None = None,
        device: torch.device | str = "cpu",
        state: dict[str, Any] | None = None,
        meter: str | EnergyMeter = "auto",
        pue: float = 1.0,
        allow_mixed_devices: bool = False,
        eta_knob: float = 0.5,
        beta_knob: float | None = 2.0,
        num_pruning_rounds: int = 2,
        window_size: int = 0,
        policy: str | None = None,
        seed: int | None = None,
        token: str | None = None,
        strict: bool = True,
        on_failure: OnFailure | None = None,
    ) -> None:
        if url is not None:
            BSOClient(url, plain_token(token))  # an invalid one is an error
        self._arguments = JobArguments(
            target_metric=target_metric,
            monitor=monitor,
            mode=mode,
            job_id=job_id,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            max_epochs=max_epochs,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            num_pruning_rounds=num_pruning_rounds,
            window_size=window_size,
            policy=policy,
            seed=seed,
        )
        if not (job_id or os.environ.get("ZEUS_JOB_ID")):
            raise ZeusConfigError("no job given; pass job_id=... or set $ZEUS_JOB_ID")
        if (mistake := contradiction(monitor, mode, target_metric)) is not None:
            rank_zero_warn(f"zeus: {mistake}")
        self._on_failure = on_failure_of(on_failure)
        self._is_watched = fabric is not None and is_watched(fabric.strategy)
        self._url, self._token, self._strict = url, plain_token(token), strict
        self._meter_choice, self._pue = meter, pue
        self._allow_mixed = allow_mixed_devices
        self._saved = SavedTrial.from_json(state) if state else None
        self._ranks = TorchRanks(fabric.device if fabric is not None else torch.device(device))
        self._strategy = cast("Strategy", self._ranks)  # it has the part of one that is used
        self._share = 1
        self._trial = OpenTrial(self._strategy)
        self._entered = ExitStack()
        self._reports = 0
        self.batch_size = index(default_batch_size)  # numpy's integers are none to a DataLoader
        """The batch size of all ranks together; until the block is entered, the default."""
        self.job: JobSpec | None = None
        """The job as it is registered; None until the block is entered."""
        self.client: BSOClient | None = None
        """The service; None until the block is entered."""

    @property
    def local_batch_size(self) -> int:
        """This rank's part of `batch_size`."""
        return self.batch_size // self._share

    @property
    def trial(self) -> TrialStart | None:
        """The trial; None before the block is entered, and if the service was away then."""
        return None if self._trial.record is None else self._trial.record.trial

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended; None while it runs."""
        return None if self._trial.record is None else self._trial.record.outcome

    @property
    def cost(self) -> float | None:
        """The cost at the last report, in joules."""
        return None if self._trial.record is None else self._trial.record.cost

    def __enter__(self) -> Self:
        if self.job is not None:
            raise ZeusConfigError("this Recurrence has been entered before; make a new one per run")
        self._ranks.check_set_up()
        self._share = self._ranks.world_size
        self._meter = RunMeter(
            self._meter_choice, self._strategy, self._pue, allow_mixed=self._allow_mixed
        )
        rank_zero_info(f"zeus: {self._meter.scope()}")
        try:
            if self._share == 1:
                self._entered.enter_context(exit_on_sigterm())
            self._start()
            on_every_rank(self._strategy, self._meter.begin)
        except BaseException as error:
            self._end_at_once(error)
            self.job = None
            raise
        return self

    def report(self, metric: float, epoch: int | None = None) -> Reply:
        """Report a validation; all ranks call it, and rank zero's metric counts.

        Args:
            metric: The metric, the same on all ranks.
            epoch: Epochs completed. Default: the number of reports, this one included.
        """
        if self.job is None:
            raise ZeusConfigError("report() was called before `with Recurrence(...) as run:`")
        self._reports = self._reports + 1 if epoch is None else int(epoch)
        epochs = self._reports
        if self._trial.reporter is not None:
            self._check_ranks("reports")
            spent = self._meter.spent()
            self._trial.report(
                lambda reporter: reporter.report(
                    epochs, spent, shortest_decimal(metric), self._meter.power_limits_w()
                )
            )
        return Reply(self._trial.should_stop, self.outcome, self.cost)

    def state_dict(self) -> dict[str, Any]:
        """The trial as it is now, in plain values for a checkpoint; empty if there is none."""
        if self._trial.record is None:
            return {}
        return self._trial.saved(self._meter.spent_by_now()).to_json()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end_at_once(error)
            out_of_memory = self.outcome == "out_of_memory" and isinstance(error, Exception)
            if out_of_memory and self._on_failure == "exit":
                traceback.print_exception(error)
                raise SystemExit(EXIT_TRY_AGAIN)
            return
        try:
            self._end()
        except BaseException as interruption:
            self._end_at_once(interruption)
            raise
        self._close()
        if (failure := self._trial.failure) is not None:
            if self._on_failure == "raise":
                raise failure
            rank_zero_warn(f"zeus: {failure.message}")
            if self._on_failure == "exit":
                raise SystemExit(0 if self._is_watched else EXIT_TRY_AGAIN)

    def _start(self) -> None:
        """Start a trial or resume one; without the service, unless `strict`, train without."""
        arguments, saved = self._arguments, self._ranks.broadcast(self._saved)
        self.client = client = on_every_rank(
            self._strategy, lambda: connect(self._url, self._token)
        )
        self.job = job = on_every_rank(
            self._strategy,
            lambda: arguments.spec(
                "",
                cast("int", arguments.default_batch_size),
                cast("int", arguments.max_epochs),
                self._share,
            ),
        )
        try:
            if saved is None:
                record = self._trial.start(client, job, self._meter, self._share)
                self.job, self.batch_size = record.job, record.trial.batch_size
            else:
                self.batch_size = saved.record.trial.batch_size
                sizes.check_shares([self.batch_size], self._share)
                self._trial.resume(client, job, self._meter, saved)
                self._reports = saved.record.report.epoch if saved.record.report else 0
        except ZeusServiceUnavailable as error:
            if self._strict:
                raise
            rank_zero_warn(
                f"zeus: {error.message}; training without it on batch size {self.batch_size}"
            )

    def _check_ranks(self, step: str) -> None:
        """Raise a `ZeusConfigError` on all ranks unless they are as many as they were, and in step.

        Args:
            step: What this rank does now, in a word or two.
        """
        if self._ranks.world_size != self._share:
            raise ZeusConfigError(
                f"the number of ranks is {self._ranks.world_size} now, and was {self._share} as "
                "the block was entered; enter it after init_process_group(), and leave it before "
                "destroy_process_group()"
            )
        steps = gather(self._strategy, step)
        if len(set(steps)) > 1:
            each = ", ".join(f"rank {rank} {what}" for rank, what in enumerate(steps))
            raise ZeusConfigError(
                f"the ranks are out of step: {each}; all of them report, and all leave the block "
                "together: let them stop for a reason that all know, such as report(...).stop"
            )

    def _end(self) -> None:
        """End a trial that is still open as the block is left."""
        if self._trial.reporter is not None and self._ranks.world_size >= self._share:
            self._check_ranks("leaves the block")
        record = self._trial.record
        if record is not None and record.report is None:
            self._trial.end("errored", "the loop ended without a report")
        else:
            self._trial.end("not_converged", "the loop ended, short of the target")

    def _end_at_once(self, error: BaseException) -> None:
        """End a trial from this rank alone, in about a second, after an exception."""
        self._trial.close(outcome_of(error), reason_of(error))
        self._close()

    def _close(self) -> None:
        self._entered.close()
        with suppress(Exception):
            self._meter.close()
