"""`lr_scaling` multiplies the rates of every optimizer and scheduler of the program, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateFinder, OnExceptionCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.tuner import Tuner
from programs import Data, LoadsLate, Net, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess
from torch.optim import SGD, Adam, lr_scheduler

from zeus_lightning import ZeusBSOCallback, ZeusConfigError


class Program(Net):
    """All gradients are 1, so that SGD subtracts the learning rate from each parameter.

    `used` has the rates of the layer's weight and bias in each training step.
    """

    lr = 0.02

    def __init__(self, val_acc: tuple[float, ...] = (0.1, 0.9)) -> None:
        super().__init__(val_acc)
        self.double()  # its differences are compared
        self.used: list[list[float]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        return self.loss()

    def loss(self) -> torch.Tensor:
        return sum(each.sum() for each in self.parameters())  # type: ignore[return-value]

    def on_train_batch_start(self, *args: Any) -> None:
        self.before = [each.mean().item() for each in self.parameters()]

    def on_train_batch_end(self, *args: Any) -> None:
        after = [each.mean().item() for each in self.parameters()]
        self.used.append([old - new for old, new in zip(self.before, after, strict=True)])


def one_cycle(net: Program, optimizer: Any) -> Any:
    steps = int(net.trainer.estimated_stepping_batches)
    return lr_scheduler.OneCycleLR(optimizer, net.lr, steps, cycle_momentum=False)


def sequence(net: Program, optimizer: Any) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    restarts = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 8, eta_min=net.lr / 10)
    return lr_scheduler.SequentialLR(optimizer, [first, restarts], milestones=[5])


def chain(net: Program, optimizer: Any) -> Any:
    first = lr_scheduler.ExponentialLR(optimizer, 0.9)
    second = lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return lr_scheduler.ChainedScheduler([first, second])


def plateau(net: Program, optimizer: Any) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=net.lr / 4)


class Foreign:
    """A scheduler that is not derived from torch's, and keeps a rate of its own."""

    def __init__(self, net: Program, optimizer: Any) -> None:
        self.optimizer, self.rate = optimizer, net.lr

    def step(self, *args: Any) -> None:
        self.rate *= 0.9
        self.optimizer.param_groups[0]["lr"] = self.rate

    def state_dict(self) -> dict[str, Any]:
        return {}

    load_state_dict = step


class Scheduled(Program):
    """Steps a scheduler after each batch."""

    def __init__(self, scheduler: Any, optimizer: Any = SGD) -> None:
        super().__init__()
        self.scheduler, self.optimizer = scheduler, optimizer

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer(self.parameters(), lr=self.lr)
        scheduler = self.scheduler(self, optimizer)
        every_step = {"scheduler": scheduler, "interval": "step", "monitor": "train_loss"}
        return {"optimizer": optimizer, "lr_scheduler": every_step}

    def training_step(self, batch: Any, index: int) -> Any:
        self.log("train_loss", 1.0)
        return self.loss()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(*([] if metric is None else [metric]))


class Groups(Program):
    """One group has a multiple of the attribute, the other one a rate of its own."""

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": self.layer.weight, "lr": self.lr / 2},
            {"params": self.layer.bias, "lr": 0.3},
        ]
        optimizer = SGD(groups)
        return [optimizer], [lr_scheduler.MultiStepLR(optimizer, [1])]


class WithTensor(Program):
    """Has its rate in a tensor."""

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), torch.tensor(self.lr), foreach=False)


class Manual(Program):
    """Two optimizers, each with a scheduler."""

    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        both = [SGD([self.layer.weight], lr=self.lr), SGD([self.layer.bias], lr=0.4)]
        return both, [lr_scheduler.StepLR(each, 4, 0.5) for each in both]

    def training_step(self, batch: Any, index: int) -> None:
        optimizers = self.optimizers()
        for each in optimizers:
            each.zero_grad()
        self.manual_backward(self.loss())
        for optimizer, scheduler in zip(optimizers, self.lr_schedulers(), strict=True):
            optimizer.step()
            scheduler.step()


PROGRAMS = {
    "one cycle": lambda: Scheduled(one_cycle, Adam),
    "sequence": lambda: Scheduled(sequence),
    "chain": lambda: Scheduled(chain),
    "plateau": lambda: Scheduled(plateau),
    "groups": Groups,
    "tensor": WithTensor,
    "manual": Manual,
}


class Job:
    """A job whose runs train with batch size 4, where the program's own is 8."""

    def __init__(self, url: str) -> None:
        self.url, self.id = url, new_job()
        trainer(self.callback(batch_sizes=[4])).fit(Net((0.9,)), Data(4))

    def callback(self, lr_scaling: Any = "linear", **sizes: Any) -> ZeusBSOCallback:
        job = {"job_id": self.id, "max_epochs": 5, "beta_knob": float("inf")}
        return zeus(self.url, lr_scaling=lr_scaling, **job, **sizes)

    def fit(self, net: Program, rule: str = "linear") -> Any:
        """The rates that a run uses."""
        trainer(self.callback(rule), max_epochs=2).fit(net, Data(8))
        assert net.batch_lengths <= {4}
        return net.used


@pytest.fixture(scope="module")
def job(service: ServiceProcess) -> Job:
    return Job(service.url)


def unscaled(net: Program, batch_size: int = 4) -> list[list[float]]:
    """The rates that a program uses with a batch size, without the callback."""
    trainer(max_epochs=2).fit(net, Data(batch_size))
    return net.used


def times(factor: float, rates: list[list[float]]) -> Any:
    return [pytest.approx([factor * rate for rate in step], rel=1e-3) for step in rates]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_step_uses_a_multiple_of_the_programs_rate(job: Job, name: str) -> None:
    own = unscaled(PROGRAMS[name]())
    assert len(own) == 2 * 16
    assert min(min(step) for step in own) > 0
    assert job.fit(PROGRAMS[name]()) == times(0.5, own)


def test_a_scheduler_that_is_not_derived_from_torchs_is_an_error(job: Job) -> None:
    with pytest.raises(ZeusConfigError, match="cannot change the learning rates of Foreign"):
        job.fit(Scheduled(Foreign))


def test_with_sqrt_the_multiple_is_the_root(job: Job) -> None:
    assert job.fit(Program(), rule="sqrt") == times(0.5**0.5, unscaled(Program()))


def test_the_rate_of_lightning_clis_optimizer_is_scaled(job: Job) -> None:
    class ForCli(Program):
        """LightningCLI makes its optimizer."""

        configure_optimizers = LightningModule.configure_optimizers

    cli = LightningCLI(
        ForCli,
        Data,
        args=["fit", "--optimizer=SGD", "--optimizer.lr=0.02", "--model.val_acc=[0.9]"],
        save_config_callback=None,
        trainer_defaults={
            "callbacks": [job.callback()],
            "max_epochs": 5,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        },
    )
    assert cli.model.used == times(0.5, [[0.02, 0.02]] * 16)


class Crashes(Scheduled):
    """Fails in the closure of its twentieth step."""

    def training_step(self, batch: Any, index: int) -> Any:
        if self.trainer.global_step == 19:
            raise ZeroDivisionError
        return super().training_step(batch, index)


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_resumes_after_a_crash_is_scaled_once(
    service: ServiceProcess, tmp_path: Path, late: bool
) -> None:
    """By its own factor, also where the checkpoint is loaded after another trial began."""
    job = new_job()

    knobs = {"lr_scaling": "linear", "beta_knob": float("inf")}

    def fit(net: Net, *others: Callback, data: Data, **arguments: Any) -> None:
        callback = zeus(service.url, job_id=job, **knobs, **sizes)
        options = {
            "strategy": LoadsLate() if late else "auto",
            "max_epochs": 2,
            "enable_checkpointing": True,
            "default_root_dir": tmp_path,
        }
        trainer(callback, *others, **options).fit(net, data, **arguments)

    sizes: dict[str, Any] = {"batch_sizes": [2, 4]}
    fit(Net((0.9,)), data=Data(4))
    sizes.clear()
    first, resumed = Crashes(one_cycle, Adam), Scheduled(one_cycle, Adam)
    with pytest.raises(ZeroDivisionError):
        fit(first, OnExceptionCheckpoint(tmp_path), data=Data(8))
    for _ in range(2):
        fit(Net((0.9,)), data=Data(8))
    fit(resumed, data=Data(8), ckpt_path=tmp_path / "on_exception.ckpt")
    given = [(each["batch_size"], each["outcome"]) for each in trials(service.url, job)]
    assert (given[1], given[-1]) == ((2, "converged"), (4, "withdrawn"))
    assert [*first.used, *resumed.used] == times(0.25, unscaled(Scheduled(one_cycle, Adam), 2))


def test_tuners_fits_have_no_trial_and_the_rate_that_they_find_is_scaled(
    service: ServiceProcess,
) -> None:
    job = Job(service.url)
    callback, net, data = job.callback(), Program((0.9,)), Data(8)
    runner = trainer(callback)
    found = Tuner(runner).lr_find(
        net, datamodule=data, num_training=20, early_stop_threshold=None, attr_name="lr"
    )
    assert net.lr == found.suggestion() != Program.lr
    size = Tuner(runner).scale_batch_size(net, datamodule=data, max_trials=1)
    assert size == data.batch_size
    assert outcomes(job.url, job.id) == ["converged"]
    data.batch_size = 8
    net.used.clear()
    runner.fit(net, data)
    assert outcomes(job.url, job.id) == ["converged", "converged"]
    assert net.used == times(0.5, [[net.lr, net.lr]] * 16)


@pytest.mark.parametrize("finder_first", [True, False])
def test_what_a_finder_finds_for_the_batch_size_of_the_run_is_not_scaled(
    job: Job, finder_first: bool
) -> None:
    finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None, attr_name="lr")
    callbacks, net = [finder, job.callback()], Program((0.9,))
    trainer(*callbacks[:: 1 if finder_first else -1]).fit(net, Data(8))
    lr = finder.optimal_lr.suggestion()
    assert lr != Program.lr
    assert net.used[-16:] == times(1.0, [[lr, lr]] * 16)


class ConstantSteps(Program):
    """Schedules the steps that 64 samples take in batches of 8, whatever the batch size."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), self.lr)
        scheduler = lr_scheduler.OneCycleLR(optimizer, self.lr, steps_per_epoch=8, epochs=3)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def test_a_schedule_that_ends_before_a_run_of_a_smaller_batch_size_is_an_error_at_its_start(
    service: ServiceProcess,
) -> None:
    name = new_job()

    def run(net: Program) -> None:
        callback = zeus(service.url, job_id=name, batch_sizes=[4, 8, 16])
        trainer(callback, max_epochs=3).fit(net, Data(batch_size=8))

    run(ConstantSteps())  # with the default
    net = ConstantSteps()
    with pytest.raises(ZeusConfigError) as raised:
        run(net)
    assert net.used == []
    assert str(raised.value) == (
        "OneCycleLR ends after 24 steps, but with batch size 4 this run takes 48; create it "
        "with total_steps=trainer.estimated_stepping_batches"
    )
    run(ConstantSteps())  # with a larger one, which has fewer steps
    sizes = [(each["batch_size"], each["outcome"]) for each in trials(service.url, name)]
    assert sizes == [(8, "converged"), (4, "not_converged"), (16, "converged")]
