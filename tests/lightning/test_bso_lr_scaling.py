"""`lr_scaling` reaches the optimizers however the program makes them, once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.tuner import Tuner
from programs import Data, Net, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR

from zeus_lightning import ZeusBSOCallback, ZeusConfigError


class Rates(Callback):
    """The optimizers' rates, by groups, as training starts."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        groups = [group for each in trainer.optimizers for group in each.param_groups]
        self.seen = [group.get("max_lr", group["lr"]) for group in groups]
        of_schedulers = [
            rate
            for config in trainer.lr_scheduler_configs
            for rate in getattr(config.scheduler, "base_lrs", ())
        ]
        assert of_schedulers in ([], [group.get("initial_lr") for group in groups])


class Job:
    """A job whose second trial trains with batch size 4, where the program says 8."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.id = new_job()
        trainer(self.callback()).fit(Multiple((0.9,)), Data())

    def callback(self) -> ZeusBSOCallback:
        return zeus(self.url, job_id=self.id, lr_scaling="linear")

    def rates(self, net: Net, *others: Callback, **arguments: Any) -> list[float]:
        seen = Rates()
        saves = any(isinstance(other, ModelCheckpoint) for other in others)
        runner = trainer(self.callback(), seen, *others, enable_checkpointing=saves)
        runner.fit(net, Data(), **arguments)
        return seen.seen


@pytest.fixture
def job(service: ServiceProcess) -> Job:
    return Job(service.url)


class WithoutLr(Net):
    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.02)


class Literal(WithoutLr):
    """Has a rate that it does not use."""

    lr = 0.1


class OfAnotherName(Net):
    """Has two of the names, and uses the second."""

    lr, learning_rate = 0.1, 0.02

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=self.learning_rate)


class OfBothNames(Net):
    """Has both names, as hyperparameters with values of their own, and uses them in that order."""

    def __init__(self, val_acc: tuple[float, ...], lr: float = 0.02) -> None:
        super().__init__(val_acc)
        self.save_hyperparameters({"lr": lr, "learning_rate": 2 * lr})
        self.lr = lr / 2  # not used

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": self.layer.weight, "lr": self.hparams.lr},
            {"params": self.layer.bias, "lr": self.hparams.learning_rate},
        ]
        return SGD(groups, lr=1.0)


class Computed(Net):
    """Has one of the names as a property that follows the other one, and cannot be set."""

    def __init__(self, val_acc: tuple[float, ...], lr: float = 0.02) -> None:
        super().__init__(val_acc)
        self.save_hyperparameters("lr")

    @property
    def learning_rate(self) -> float:
        return float(self.hparams.lr)

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=self.learning_rate)


class Fixed(Net):
    """Has a rate that cannot be set."""

    lr = property(lambda _: 0.02)


class LiteralByChance(WithoutLr):
    """Uses the rate that the other one, which it does not use, is scaled to."""

    lr = 0.04


class OtherByChance(OfAnotherName):
    lr = 0.04


class Multiple(Net):
    lr = 0.1

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=self.lr * 0.2)


class Groups(Net):
    """One group has the rate, one a multiple of it, and one a rate of its own."""

    lr = 0.02

    def __init__(self, val_acc: tuple[float, ...]) -> None:
        super().__init__(val_acc)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": self.layer.weight},
            {"params": self.layer.bias, "lr": self.lr / 10},
            {"params": self.scale, "lr": 0.3},
        ]
        optimizer = SGD(groups, lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": MultiStepLR(optimizer, [2])}


class TwoOptimizers(Net):
    """Two optimizers, each with a scheduler; the rate of the second has another name."""

    lr, rate_of_bias = 0.02, 0.4

    def __init__(self, val_acc: tuple[float, ...]) -> None:
        super().__init__(val_acc)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        weight = SGD([self.layer.weight], lr=self.lr)
        bias = SGD([self.layer.bias], lr=self.rate_of_bias)
        return [weight, bias], [MultiStepLR(weight, [2]), MultiStepLR(bias, [2])]


class WithoutLrButSteps(Net):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.02)
        return [optimizer], [MultiStepLR(optimizer, [2])]


class Cycle(Net):
    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.02)
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": OneCycleLR(optimizer, 0.02, steps), "interval": "step"}]


@pytest.mark.parametrize(
    ("net", "rates"),
    [
        (WithoutLr, [0.01]),
        (Literal, [0.01]),
        (OfAnotherName, [0.01]),
        (OfBothNames, [0.01, 0.02]),
        (Computed, [0.01]),
        (Fixed, [0.01]),
        (LiteralByChance, [0.01]),
        (OtherByChance, [0.01]),
        (Multiple, [0.01]),
        (Groups, [0.01, 0.001, 0.15]),
        (TwoOptimizers, [0.01, 0.2]),
        (WithoutLrButSteps, [0.01]),
        (Cycle, [0.01]),
    ],
)
def test_the_optimizers_train_with_the_scaled_rate(
    job: Job, net: type[Net], rates: list[float]
) -> None:
    assert job.rates(net((0.9,))) == pytest.approx(rates)


def test_of_what_it_tries_the_module_keeps_nothing(job: Job) -> None:
    class Keeps(Multiple):
        def configure_optimizers(self) -> Any:
            self.optimizer = SGD(self.parameters(), lr=self.lr * 0.2)
            return self.optimizer

        def on_train_start(self) -> None:
            assert self.optimizer is self.trainer.optimizers[0]
            assert self.lr == pytest.approx(0.05)

    assert job.rates(Keeps((0.9,))) == pytest.approx([0.01])


def test_the_rate_of_lightning_clis_optimizer_is_scaled(job: Job, tmp_path: Path) -> None:
    class ForCli(Net):
        """LightningCLI makes its optimizer."""

        configure_optimizers = LightningModule.configure_optimizers

    seen = Rates()
    LightningCLI(
        ForCli,
        Data,
        args=["fit", "--optimizer=SGD", "--optimizer.lr=0.02", "--model.val_acc=[0.9]"],
        save_config_callback=None,
        trainer_defaults={
            "callbacks": [job.callback(), seen],
            "max_epochs": 5,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
        },
    )
    assert seen.seen == pytest.approx([0.01])


def test_a_resumed_run_is_not_scaled_twice(job: Job, tmp_path: Path) -> None:
    class Crash(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                raise ZeroDivisionError

    class LiteralCycle(Literal):
        configure_optimizers = Cycle.configure_optimizers

    with pytest.raises(ZeroDivisionError):
        job.rates(LiteralCycle((0.1,)), ModelCheckpoint(tmp_path, "first"), Crash())
    resumed = job.rates(LiteralCycle((0.9,)), ckpt_path=tmp_path / "first.ckpt")
    assert resumed == pytest.approx([0.01])
    assert outcomes(job.url, job.id)[1] == "converged"


class Foreign:
    """A scheduler of its own making."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, *args: Any) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    load_state_dict = step


def test_a_scheduler_that_cannot_be_scaled_is_an_error(job: Job) -> None:
    class Scheduled(WithoutLr):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": Foreign(optimizer)}]

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            pass

    with pytest.raises(ZeusConfigError, match="lr_scaling cannot change it in Foreign"):
        job.rates(Scheduled())
    assert outcomes(job.url, job.id) == ["converged", "withdrawn"]


class Tuned(Net):
    lr = 0.1


def test_tuners_fits_have_no_trial_and_the_rate_that_they_find_is_scaled_once(job: Job) -> None:
    callback, rates, net, data = job.callback(), Rates(), Tuned((0.9,)), Data()
    runner = trainer(callback, rates)
    found = Tuner(runner).lr_find(
        net, datamodule=data, num_training=20, early_stop_threshold=None, attr_name="lr"
    )
    assert outcomes(job.url, job.id) == ["converged"]
    assert net.lr != 0.1
    assert net.batch_lengths == {8}
    size = Tuner(runner).scale_batch_size(net, datamodule=data, max_trials=1)
    assert size == data.batch_size
    assert outcomes(job.url, job.id) == ["converged"]
    data.batch_size = 8
    runner.fit(net, data)
    assert outcomes(job.url, job.id) == ["converged", "converged"]
    assert rates.seen == pytest.approx([found.suggestion() * 0.5])


@pytest.mark.parametrize("net", [Tuned, Literal])
def test_what_a_finder_finds_for_the_batch_size_of_the_run_is_not_scaled(
    job: Job, net: type[Net]
) -> None:
    finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None, attr_name="lr")
    assert job.rates(net((0.9,)), finder) == pytest.approx([finder.optimal_lr.suggestion()])


class Consumes(Net):
    """Has a factor of its own, and can build its optimizer only once."""

    lr = 0.1

    def __init__(self) -> None:
        super().__init__((0.9,))
        self.config = {"factor": 0.5}

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=self.lr * self.config.pop("factor"))


def test_optimizers_that_can_be_built_only_once_train_with_a_warning(job: Job) -> None:
    with pytest.warns(UserWarning, match="fails the second time .KeyError: 'factor'"):
        assert job.rates(Consumes()) == pytest.approx([0.1 / 2 * 0.5])
