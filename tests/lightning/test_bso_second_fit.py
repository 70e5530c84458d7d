"""A second `fit` on one Trainer continues the first one, with its weights and epochs."""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint, Timer
from programs import Data, Net, WorkMeter, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess
from waiting import LIMIT_S

from zeus_lightning import ZeusBSOCallback, ZeusTrialFailed

PER_EPOCH = 64 // 4  # steps, of a trial that trains with batch size 4
WITHOUT = "This Trainer has already trained, so this fit is not measured"


class At(Callback):
    """Raises an error once, after so many steps."""

    def __init__(self, step: int, error: BaseException) -> None:
        self.step = step
        self.error: BaseException | None = error

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.global_step == self.step and self.error is not None:
            error, self.error = self.error, None
            raise error


class Recorded(Net):
    """Counts the steps since the Trainer's first."""

    def on_train_start(self) -> None:
        self.steps_before = self.trainer.global_step
        self.batch_lengths.clear()


class Run:
    """A Trainer whose trial trains with batch size 4, where the program says 8."""

    def __init__(self, url: str, *others: Callback, **arguments: Any) -> None:
        self.url = url
        self.id = new_job()
        self.meter = WorkMeter()
        trainer(self.callback()).fit(Net((0.9,)), Data())
        self.zeus = self.callback(**arguments)
        self.net = Recorded()
        self.data = Data(batch_size=8)
        saves = any("Checkpoint" in type(other).__name__ for other in others)
        self.trainer = trainer(
            self.meter, self.zeus, *others, max_epochs=9, enable_checkpointing=saves
        )

    def callback(self, **arguments: Any) -> ZeusBSOCallback:
        fixed = {"job_id": self.id, "meter": self.meter, "max_epochs": 9, "beta_knob": None}
        return zeus(self.url, **(fixed | arguments))

    def fit(self, net: Net | None = None, **arguments: Any) -> None:
        with suppress(ZeroDivisionError, SystemExit):
            self.trainer.fit(net or self.net, self.data, **arguments)

    @property
    def spent(self) -> tuple[float, float]:
        assert self.zeus.last_report is not None
        return self.zeus.last_report.energy_j, self.zeus.last_report.time_s


@pytest.mark.parametrize(
    ("error", "outcome", "step"),
    [(KeyboardInterrupt(), "interrupted", 3), (ZeroDivisionError(), "errored", PER_EPOCH + 3)],
)
def test_it_resumes_the_trial_of_a_run_that_was_interrupted(
    service: ServiceProcess, error: BaseException, outcome: str, step: int
) -> None:
    run = Run(service.url, At(step, error))
    run.fit()
    assert outcomes(service.url, run.id) == ["converged", outcome]
    run.fit()
    assert outcomes(service.url, run.id) == ["converged", "converged"]
    assert run.zeus.trial.trial_number == 2
    assert run.net.steps_before == step
    assert run.net.batch_lengths == {4}
    steps = step % PER_EPOCH + 3 * PER_EPOCH  # Lightning starts the epoch anew
    assert run.spent == (steps * 3.0, steps)
    assert trials(service.url, run.id)[1]["cost"] == run.zeus.cost_j
    assert run.data.batch_size == 8


class Expires(Timer):
    """Is out of time after so many steps, and never again."""

    def __init__(self, step: int) -> None:
        super().__init__(duration={"days": 1})
        self.step = step

    def on_fit_start(self, trainer: Any, *args: Any) -> None:
        self._duration = None

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self._duration = 0.0 if trainer.global_step == self.step else None
        super().on_train_batch_end(trainer, *args)


def test_it_resumes_a_run_that_was_out_of_time(service: ServiceProcess) -> None:
    run = Run(service.url, Expires(3))
    run.fit()
    assert run.zeus.outcome == "interrupted"
    run.fit()
    assert outcomes(service.url, run.id) == ["converged", "converged"]
    steps = 3 + 2 * PER_EPOCH  # the third validation is the second epoch's end
    assert run.spent == (steps * 3.0, steps)


def test_after_a_verdict_it_trains_on_without_a_trial(service: ServiceProcess) -> None:
    run = Run(service.url)
    run.fit()
    with pytest.warns(UserWarning, match=WITHOUT):
        run.fit()
    assert run.net.batch_lengths == {8}
    assert (run.zeus.trial, run.zeus.outcome) == (None, None)
    run.fit()  # the same once more
    assert outcomes(service.url, run.id) == ["converged", "converged"]


def test_another_module_gets_no_trial_on_a_trainer_that_has_trained(
    service: ServiceProcess,
) -> None:
    run, other = Run(service.url, At(3, KeyboardInterrupt())), Net((0.9,))
    run.fit()
    with pytest.warns(UserWarning, match=WITHOUT):
        run.fit(other)
    assert other.batch_lengths == {8}
    assert outcomes(service.url, run.id) == ["converged", "interrupted"]


def test_a_trial_that_the_service_no_longer_has_is_not_resumed(service: ServiceProcess) -> None:
    run = Run(service.url, At(3, KeyboardInterrupt()))
    run.fit()
    assert requests.delete(f"{run.url}/api/v1/jobs/{run.id}", timeout=LIMIT_S).ok
    with pytest.warns(UserWarning, match="service does not know"):
        run.fit()


def test_one_that_has_no_epochs_left_does_nothing(service: ServiceProcess) -> None:
    run = Run(service.url)
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit_loop.epoch_loop.max_steps = -1
    with pytest.raises(ZeusTrialFailed):
        run.fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run.fit()
    assert outcomes(service.url, run.id) == ["converged", "not_converged"]


def test_a_checkpoint_goes_before_the_weights_that_the_trainer_has(
    service: ServiceProcess, tmp_path: Path
) -> None:
    saver = ModelCheckpoint(tmp_path, save_last=True)
    run = Run(service.url, saver, At(PER_EPOCH + 3, KeyboardInterrupt()))
    run.fit()
    run.fit(ckpt_path="last")
    assert run.net.steps_before == PER_EPOCH
    assert outcomes(service.url, run.id) == ["converged", "converged"]
    assert run.spent == (3 * PER_EPOCH * 3.0, 3 * PER_EPOCH)  # the three lost steps do not count


def test_without_the_service_it_trains_on_without_a_trial(
    own_service: ServiceProcess, tmp_path: Path
) -> None:
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    run = Run(own_service.url, saver, At(PER_EPOCH + 3, KeyboardInterrupt()))
    run.fit()
    own_service.kill()
    with pytest.warns(UserWarning, match=WITHOUT):
        run.fit()
    assert run.net.batch_lengths == {4}
    assert run.zeus.outcome is None
    saved = torch.load(tmp_path / "epoch=8.ckpt", weights_only=True)
    assert not saved["callbacks"].get("ZeusBSOCallback")


def test_without_a_required_service_it_trains_on_to_the_target(
    own_service: ServiceProcess,
) -> None:
    stopped = At(PER_EPOCH + 3, KeyboardInterrupt())
    run = Run(own_service.url, stopped, require_service=False)
    run.net.val_acc = (0.1, 0.1, 0.1, 0.9)
    run.fit()
    own_service.kill()
    with pytest.warns(UserWarning, match="is not continued"):
        run.fit()
    assert run.trainer.should_stop
    assert run.trainer.current_epoch < 9


@pytest.mark.parametrize(
    ("kind", "step", "zeus_first"),
    [
        (OnExceptionCheckpoint, 3, True),
        (OnExceptionCheckpoint, PER_EPOCH + 3, False),
        (ModelCheckpoint, 3, False),
        (ModelCheckpoint, PER_EPOCH + 3, True),
    ],
)
def test_a_checkpoint_saved_on_an_exception_counts_what_was_spent_by_then(
    service: ServiceProcess, tmp_path: Path, kind: Any, step: int, zeus_first: bool
) -> None:
    if kind is OnExceptionCheckpoint:
        saver = OnExceptionCheckpoint(tmp_path, "saved")
    else:
        saver = ModelCheckpoint(tmp_path, "saved", save_on_exception=True, every_n_epochs=99)
    run = Run(service.url, saver, At(step, ZeroDivisionError()))
    if not zeus_first:
        run.trainer.callbacks.sort(key=lambda each: isinstance(each, ZeusBSOCallback))
    run.fit()
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    of_zeus = saved["callbacks"]["ZeusBSOCallback"]
    assert (of_zeus["spent"]["energy_j"], of_zeus["spent"]["time_s"]) == (step * 3.0, step)
    again = run.callback()
    Trainer(
        callbacks=[run.meter, again], logger=False, enable_checkpointing=False, max_epochs=9
    ).fit(Net((0.9,)), Data(8), ckpt_path=tmp_path / "saved.ckpt")
    assert outcomes(service.url, run.id) == ["converged", "converged", "withdrawn"]
    rest = -step % PER_EPOCH  # Lightning takes up the epoch where it was
    assert again.last_report.energy_j == (step + rest) * 3.0


class Fixed(Data):
    """Takes no other batch size once training has begun."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "batch_size" and getattr(self, "trainer", None) and self.trainer.global_step:
            raise RuntimeError("too late")
        super().__setattr__(name, value)


def test_what_was_spent_is_saved_also_if_the_program_cannot_be_restored(
    service: ServiceProcess, tmp_path: Path
) -> None:
    run = Run(service.url, OnExceptionCheckpoint(tmp_path, "saved"), At(3, ZeroDivisionError()))
    run.data = Fixed(8)
    run.fit()
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)
    assert saved["callbacks"]["ZeusBSOCallback"]["spent"]["energy_j"] == 9.0


class TestOfATrainedModule:
    """In a new Trainer: its weights go on, but its epochs begin anew."""

    def test_it_trains_without_a_trial(self, service: ServiceProcess) -> None:
        job, net, data = new_job(), Net((0.9,)), Data()
        trainer(zeus(service.url, job_id=job)).fit(net, data)
        callback = zeus(service.url, job_id=job)
        with pytest.warns(UserWarning, match="This module has already been trained.*of another"):
            trainer(callback).fit(net, data)
        assert callback.trial is None
        assert outcomes(service.url, job) == ["converged"]

    def test_with_new_weights_it_starts_a_trial(self, service: ServiceProcess) -> None:
        job, net, data = new_job(), Net((0.9,)), Data()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        resets = (
            net.layer.reset_parameters,
            lambda: net.load_state_dict(before),
            net.layer.weight.data.normal_,
        )
        for reset in resets:
            trainer(zeus(service.url, job_id=job)).fit(net, data)
            reset()
        trainer(zeus(service.url, job_id=job)).fit(net, data)
        assert outcomes(service.url, job) == 4 * ["converged"]

    def test_for_another_job_it_starts_a_trial(self, service: ServiceProcess) -> None:
        jobs, net, data = (new_job(), new_job()), Net((0.9,)), Data()
        for job in jobs:  # such as the head first, and then the whole network
            trainer(zeus(service.url, job_id=job)).fit(net, data)
        assert [outcomes(service.url, job) for job in jobs] == [["converged"], ["converged"]]

    def test_from_a_checkpoint_it_resumes_its_trial(
        self, service: ServiceProcess, tmp_path: Path
    ) -> None:
        job, net, data = new_job(), Net((0.1, 0.9)), Data()
        saves = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_last=True)
        stops = {"max_time": timedelta(microseconds=1), "enable_checkpointing": True}
        trainer(zeus(service.url, job_id=job), saves, **stops).fit(net, data)
        assert outcomes(service.url, job) == ["interrupted"]
        callback = zeus(service.url, job_id=job)
        trainer(callback).fit(net, data, ckpt_path=tmp_path / "last.ckpt")
        assert callback.trial.trial_number == 1
        assert outcomes(service.url, job) == ["converged"]

    def test_weights_that_count_no_changes_end_no_run(self, service: ServiceProcess) -> None:
        class Frozen(Net):
            def __init__(self) -> None:
                super().__init__((0.9,))
                with torch.inference_mode():
                    self.backbone = torch.nn.Linear(4, 4).requires_grad_(False)

        job, net = new_job(), Frozen()
        trainer(zeus(service.url, job_id=job)).fit(net, Data())
        with pytest.warns(UserWarning, match="This module has already been trained"):
            trainer(zeus(service.url, job_id=job)).fit(net, Data())
        assert outcomes(service.url, job) == ["converged"]
