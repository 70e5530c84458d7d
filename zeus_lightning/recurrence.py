"""`Recurrence`: one run of a recurring job, for a training loop that its author owns."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn

from zeus_lightning.client import BSOClient, connect
from zeus_lightning.environment import outcome_files
from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.messages import Decision, JobSpec, shortest_decimal
from zeus_lightning.meters import EnergyMeter
from zeus_lightning.program.metric import mode_of_name
from zeus_lightning.run.job import JobArguments, PolicyOptions
from zeus_lightning.run.outcomes import outcome_of, reason_of
from zeus_lightning.run.ranks import TorchRanks, gather, on_every_rank, ranks_text
from zeus_lightning.run.record import ShowsTrial, TrialRecord
from zeus_lightning.run.run import Run
from zeus_lightning.run.sigterm import exit_on_sigterm

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Recurrence(ShowsTrial):
    """One run of a recurring job, in a training loop with Fabric, torch or another library.

    It does for such a loop what `ZeusBSOCallback` does for a Trainer: it requests a batch size when
    the block is entered, measures and reports in the block, and ends the trial however the block is
    left. All ranks enter the block, report and leave it together; rank zero calls the service.

    Args:
        url: The service's URL. Default: `$ZEUS_SERVER_URL`.
        target_metric: Value of the metric that ends the training. Default: the registered job's; if
            it has none, the target is learned from baselines, whose loop runs to completion.
        baseline_runs: As for `ZeusBSOCallback`.
        batch_sizes: The batch sizes to choose from, over all ranks. Default: `default_batch_size`
            times 2**-3 to 2**3.
        default_batch_size: The batch size to start from; one of `batch_sizes`.
        max_epochs: Number of epochs after which a run that has not reached the target fails.
        job_id: The job. Default: `$ZEUS_JOB_ID`, else an error.
        monitor: The metric's name, which the service shows. Default: the job's, else `metric`.
        mode: `max` if the metric should rise to the target, `min` if it should fall. Default: the
            job's, else guessed from the metric's name; required if neither shows it.
        fabric: Fabric, after `launch()`; its device is this rank's.
        device: Without Fabric, the device on which this rank trains. Default: the CPU.
        state: `state_dict()` from an earlier run's checkpoint, to resume its trial with the energy
            and time already spent; if it is empty, a new trial starts. Only rank zero's is used.
        eta_knob: As for `ZeusBSOCallback`, as are `beta_knob`, `policy`, `meter` and
            `require_service`.
        raise_on_failure: Whether leaving the block raises `ZeusTrialFailed` if the batch size has
            failed. If False, it warns; see `outcome`.

    Attributes:
        batch_size: The batch size of this run, over all ranks.
        local_batch_size: This rank's part of it, for its dataloader.

    Raises:
        ZeusError: As `ZeusBSOCallback` does in `Trainer.fit`.

    Example::

        with Recurrence(url, job_id="digits", target_metric=0.95, monitor="val_acc",
                        batch_sizes=[32, 64], default_batch_size=32, max_epochs=20,
                        fabric=fabric) as run:
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
        target_metric: float | None = None,
        baseline_runs: int | None = None,
        batch_sizes: list[int] | None = None,
        default_batch_size: int,
        max_epochs: int,
        job_id: str | None = None,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        fabric: Fabric | None = None,
        device: torch.device | str = "cpu",
        state: dict[str, Any] | None = None,
        eta_knob: float | None = None,
        beta_knob: float | None = None,
        policy: str | PolicyOptions | None = None,
        meter: str | EnergyMeter = "auto",
        require_service: bool = True,
        raise_on_failure: bool = True,
    ) -> None:
        if url is not None:
            BSOClient(url)  # an invalid one is an error
        self._arguments = JobArguments(
            target_metric=target_metric,
            baseline_runs=baseline_runs,
            monitor=monitor,
            mode=mode,
            job_id=job_id,
            batch_sizes=batch_sizes,
            default_batch_size=default_batch_size,
            batch_size_scope="global",
            max_epochs=max_epochs,
            eta_knob=eta_knob,
            beta_knob=beta_knob,
            policy=policy,
        )
        if not (job_id or os.environ.get("ZEUS_JOB_ID")):
            raise ZeusConfigError("no job given; pass job_id=... or set $ZEUS_JOB_ID")
        self._url, self._meter = url, meter
        self._require_service, self._raise_on_failure = require_service, raise_on_failure
        self._saved = TrialRecord.from_json(state) if state else None
        self._ranks = TorchRanks(fabric.device if fabric is not None else torch.device(device))
        self._strategy = cast("Strategy", self._ranks)  # it has the part of one that is used
        self._share = 1
        self._outcome_files = outcome_files()
        self._run: Run | None = None
        self._entered = ExitStack()
        self._reports = 0
        self._has_left = False
        self.batch_size = index(default_batch_size)  # a DataLoader refuses numpy's integers
        """The batch size of all ranks together; until the block is entered, the default."""

    @property
    def local_batch_size(self) -> int:
        """This rank's part of `batch_size`."""
        return self.batch_size // self._share

    @property
    def job(self) -> JobSpec | None:
        """The job as it is registered; None until the block is entered."""
        return None if self._run is None else self._run.job

    @property
    def _record(self) -> TrialRecord | None:
        return None if self._run is None else self._run.record

    def __enter__(self) -> Self:
        if self._run is not None:
            raise ZeusConfigError("this Recurrence was already used; create a new one for each run")
        self._ranks.check_set_up()
        self._has_left = False
        if self._ranks.local_rank == 0:
            for path in self._outcome_files:
                TrialRecord.remove(path)
        self._share = self._ranks.world_size
        try:
            if self._share == 1:
                self._entered.enter_context(exit_on_sigterm())
            run = self._start()
            on_every_rank(self._strategy, run.meter.begin)
        except BaseException as error:
            self._end_at_once(error)
            self._run = None
            raise
        return self

    def report(self, metric: float, epoch: int | None = None) -> Decision:
        """Report a validation; all ranks call it, and rank zero's metric counts.

        Args:
            metric: The metric, the same on all ranks.
            epoch: Epochs completed. Default: the number of reports, this one included.

        Returns:
            Whether to stop (`stop`), how the trial ended if it did (`outcome`), and what it has
            cost so far in joules (`cost`).
        """
        if self._run is None:
            raise ZeusConfigError("report() was called before `with Recurrence(...) as run:`")
        self._reports = self._reports + 1 if epoch is None else int(epoch)
        self._check_ranks("reports")
        decision = self._run.report(self._reports, lambda: shortest_decimal(metric))
        assert decision is not None  # for there is a metric
        return decision

    def state_dict(self) -> dict[str, Any]:
        """The trial in plain values for a checkpoint; empty if there is none.

        Within the block it is the trial as it is now, and after the block as it ended.
        """
        record = self._record
        if self._run is not None and not self._has_left:
            record = self._run.checkpoint()
        return {} if record is None else record.to_json()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._end_at_once(error)
            return
        try:
            self._end()
        except BaseException as interruption:
            self._end_at_once(interruption)
            raise
        self._close()
        failure = None if self._run is None else self._run.failure
        if failure is not None:
            if self._raise_on_failure:
                raise failure
            rank_zero_warn(f"zeus: {failure.message}")

    def _start(self) -> Run:
        """Start a trial or resume one; without the service, unless required, train without."""
        arguments, saved = self._arguments, self._ranks.broadcast(self._saved)
        self._client = on_every_rank(self._strategy, lambda: connect(self._url))
        default, max_epochs = arguments.default_batch_size, arguments.max_epochs
        monitor = arguments.monitor or "metric"
        job = on_every_rank(
            self._strategy,
            lambda: arguments.spec(
                "",
                cast("int", default),
                cast("int", max_epochs),
                self._share,
                monitor,
                arguments.mode or mode_of_name(monitor),
            ),
        )
        self._run = run = Run(
            self._strategy,
            self._client,
            job,
            self._meter,
            share=self._share,
            require_service=self._require_service,
            outcome_files=self._outcome_files,
        )
        if saved is None:
            self.batch_size = run.start()
        else:
            self.batch_size = run.resume(saved)
            self._reports = saved.report.epoch if saved.report else 0
        run.log_beginning()
        return run

    def _check_ranks(self, step: str) -> None:
        """Raise a `ZeusConfigError` on all ranks unless they are as many as they were, and in step.

        Args:
            step: What this rank does now, in a word or two.
        """
        if self._ranks.world_size != self._share:
            raise ZeusConfigError(
                f"the number of ranks changed from {self._share} to {self._ranks.world_size} in "
                "the block; enter it after init_process_group(), and leave it before "
                "destroy_process_group()"
            )
        steps = gather(self._strategy, step)
        if len(set(steps)) > 1:
            at = {what: [rank for rank, each in enumerate(steps) if each == what] for what in steps}
            each = "; ".join(f"{ranks_text(ranks)}: {what}" for what, ranks in at.items())
            raise ZeusConfigError(
                f"the ranks are out of step ({each}); leave the loop on all ranks together, when "
                "report(...).stop is true"
            )

    def _end(self) -> None:
        """End a trial that is still open as the block is left."""
        run = self._run
        if run is None:
            return
        if run.is_open and self._ranks.world_size >= self._share:
            self._check_ranks("leaves the block")
        if run.record is not None and run.record.report is None:
            run.end("errored", "the loop ended without a report")
            rank_zero_warn(
                "zeus: the loop ended without a report, so nothing was learned; call "
                "report(metric) after each validation"
            )
        elif run.job.target_metric is None:
            run.end("completed", "the loop ended")
        else:
            target = run.job.target_metric
            run.end("not_converged", f"the loop ended short of the target of {target:g}")

    def _end_at_once(self, error: BaseException) -> None:
        """End a trial from this rank alone, in about a second, after an exception."""
        if self._run is not None:
            if self._run.failure is not None:  # the block will not raise it
                rank_zero_warn(f"zeus: {self._run.failure.message}")
            self._run.abort(outcome_of(error), reason_of(error))
        self._close()

    def _close(self) -> None:
        self._has_left = True
        self._entered.close()
        if self._run is not None:
            with suppress(Exception):
                self._run.meter.close()
