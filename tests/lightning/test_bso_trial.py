"""One trial of `ZeusBSOCallback`, from its start to its end, against the real service."""

from __future__ import annotations

import cProfile
import csv
import logging
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from programs import (
    FOUR,
    Data,
    Net,
    StepMeter,
    Steps,
    new_job,
    outcomes,
    trainer,
    trials,
    zeus,
)
from service_process import ServiceProcess

from zeus_lightning import ZeusTrialFailed
from zeus_lightning.run.job import default_job_id


def test_training_is_measured_reported_and_logged_until_the_target_is_reached(
    service: ServiceProcess, tmp_path: Path
) -> None:
    class Meter(StepMeter):
        def read(self) -> Any:
            read_while.append(fit.sanity_checking)
            return super().read()

    read_while: list[bool] = []
    logger, steps = CSVLogger(tmp_path), Steps()
    callback = zeus(service.url, meter=Meter(energy_j=6.0, time_s=2.0), eta_knob=0.25)
    fit = trainer(callback, steps, logger=logger, log_every_n_steps=1)
    fit.fit(Net(), Data())
    assert steps.count == 3 * 8
    assert callback.outcome == "converged"
    assert (callback.job.batch_sizes, callback.job.default_batch_size) == (
        [1, 2, 4, 8, 16, 32, 64],
        8,
    )
    assert read_while == [False] * 4  # at the start and the end of each validation
    assert callback.last_report is not None
    assert (
        callback.last_report.host_load == trials(service.url, callback.job.job_id)[0]["host_load"]
    )
    assert callback.last_report.to_json() | {"host_load": None} == {
        "host_load": None,
        "default_power_limit_w": None,
        "power_limit_w": None,
        "sequence": 3,
        "epoch": 3,
        "time_s": 6.0,
        "energy_j": 18.0,
        "metric": 0.9,
    }
    assert callback.cost_j == pytest.approx(0.25 * 18 + 0.75 * 10 * 6)
    (trial,) = trials(service.url, callback.job.job_id)
    assert trial["outcome"] == "converged"
    assert trial["cost"] == pytest.approx(callback.cost_j)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["zeus/cost_j"]]
    figures = {name.removeprefix("zeus/"): value for name, value in rows[-1].items() if value}
    assert figures == {
        "batch_size": "8.0",
        "energy_j": "18.0",
        "time_s": "6.0",
        "power_w": "3.0",
        "cost_j": "49.5",
        "step": "23",
    }
    assert len(rows) == 3


@pytest.mark.parametrize("place", ["module", "module.hparams", "datamodule.hparams"])
def test_the_batch_size_may_live_on_the_module_or_in_hparams(
    service: ServiceProcess, place: str
) -> None:
    class BareData(Data):
        def __init__(self, **hparams: int) -> None:
            super().__init__()
            del self.batch_size
            self.save_hyperparameters()

        def train_dataloader(self):
            of_module = self.trainer.lightning_module
            size = {
                "module": lambda: of_module.batch_size,
                "module.hparams": lambda: of_module.hparams.batch_size,
                "datamodule.hparams": lambda: self.hparams.batch_size,
            }[place]()
            return torch.utils.data.DataLoader(self.samples, batch_size=size)

    class HparamsNet(Net):
        def __init__(self, **hparams: int) -> None:
            super().__init__()
            self.save_hyperparameters()

    def new_net() -> Net:
        net = HparamsNet(batch_size=8) if place == "module.hparams" else Net()
        if place == "module":
            net.batch_size = 8
        return net

    data = BareData(batch_size=8) if place == "datamodule.hparams" else BareData()
    callback = zeus(service.url, batch_sizes=[8, 16], job_id=new_job())
    trainer(callback).fit(new_net(), data)
    again, net = zeus(service.url, batch_sizes=[8, 16], job_id=callback.job.job_id), new_net()
    trainer(again).fit(net, data)
    assert (callback.trial.batch_size, again.trial.batch_size) == (8, 16)
    assert net.batch_lengths == {16}


class Derived(Data):
    """Trains with a quarter of its hyperparameter, such as four views of each sample."""

    def __init__(self, batch_size: int = 32) -> None:
        super().__init__(batch_size // 4)
        self.save_hyperparameters()


def test_the_default_batch_size_is_the_attribute_also_if_a_hyperparameter_has_another(
    service: ServiceProcess,
) -> None:
    net, callback = Net(), zeus(service.url)
    trainer(callback, accumulate_grad_batches=2).fit(net, Derived())
    assert callback.job.default_batch_size == 16
    assert net.batch_lengths == {8}  # as without the callback


class Undecided(Data):
    """Has a batch size of its own only if it is given one."""

    def __init__(self) -> None:
        super().__init__(batch_size=None)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.samples, batch_size=self.batch_size or 8)


def test_a_batch_size_of_none_is_set_where_the_callback_has_the_default(
    service: ServiceProcess,
) -> None:
    job, lengths, data = new_job(), [], Undecided()
    for _ in range(2):
        net = Net()
        trainer(zeus(service.url, job_id=job, default_batch_size=16)).fit(net, data)
        lengths.append(net.batch_lengths)
    assert lengths == [{16}, {8}]
    assert data.batch_size is None


class CountsSamples(Net):
    """Has a method of the attribute's name."""

    def batch_size(self, batch: list[torch.Tensor]) -> int:
        return len(batch[0])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        assert self.batch_size(batch) == 4
        return super().training_step(batch, index)


class FollowsData(Net):
    """Has a property of the attribute's name that cannot be set."""

    @property
    def batch_size(self) -> int:
        return self.trainer.datamodule.batch_size


@pytest.mark.parametrize("module", [CountsSamples, FollowsData])
def test_a_module_may_have_a_method_or_a_property_of_that_name(
    service: ServiceProcess, module: type[Net]
) -> None:
    callback, net = zeus(service.url, **FOUR), module()
    trainer(callback).fit(net, Data(batch_size=8))
    assert callback.outcome == "converged"
    assert net.batch_lengths == {4}


def test_accumulated_batches_share_the_global_batch_size(service: ServiceProcess) -> None:
    callback, net = zeus(service.url), Net()
    trainer(callback, accumulate_grad_batches=4).fit(net, Data(batch_size=4))
    assert callback.trial.batch_size == 16
    assert callback.job.batch_sizes == [4, 8, 16, 32, 64, 128]  # not 2, which 4 do not share
    assert net.batch_lengths == {4}


def test_per_device_batch_sizes_are_passed_through_whatever_is_accumulated(
    service: ServiceProcess,
) -> None:
    scheduler = GradientAccumulationScheduler({0: 2, 1: 4})
    job, seen = new_job(), []
    for _ in range(2):
        callback = zeus(service.url, job_id=job, batch_size_scope="per_device")
        net = Net()
        trainer(callback, scheduler).fit(net, Data(batch_size=8))
        assert net.batch_lengths == {callback.trial.batch_size}
        seen.append(callback.trial.batch_size)
    assert callback.job.batch_sizes == [1, 2, 4, 8, 16, 32, 64]
    assert seen == [8, 4]


class Sets(Callback):
    """Sets another batch size as training ends."""

    def __init__(self, data: Data, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size

    def on_train_end(self, *args: Any) -> None:
        self.data.batch_size = self.batch_size


def test_optimizers_see_the_batch_size_and_checkpoints_and_program_keep_their_own(
    service: ServiceProcess, tmp_path: Path
) -> None:
    class Saved(Net):
        def __init__(self, lr: float = 0.5, batch_size: int = 64) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.lr, self.batch_size = lr, batch_size

        def configure_optimizers(self) -> Any:
            self.expected_steps = self.trainer.estimated_stepping_batches
            return super().configure_optimizers()

    net, data = Saved(), Data(batch_size=16)
    callback = zeus(service.url, batch_sizes=[8], default_batch_size=8, lr_scaling="linear")
    checkpoint = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    trainer(callback, checkpoint, Sets(data, 48), enable_checkpointing=True).fit(net, data)
    assert net.expected_steps == 5 * 64 / 8
    assert net.batch_lengths == {8}
    assert (net.batch_size, net.hparams.batch_size) == (64, 64)
    assert data.batch_size == 48  # somebody else's stays
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["hyper_parameters"]
    assert (net.lr, saved) == (0.5, {"lr": 0.5, "batch_size": 64})


def test_a_run_expected_to_cross_the_cost_bound_is_stopped(service: ServiceProcess) -> None:
    job, meter = new_job(), StepMeter()
    trainer(zeus(service.url, job_id=job, meter=meter)).fit(Net((0.9,)), Data())
    meter.energy_j *= 100
    callback, steps = zeus(service.url, job_id=job, meter=meter), Steps()
    with pytest.raises(ZeusTrialFailed, match=r"early_stopped.*would cost .* over its stop limit"):
        trainer(callback, steps).fit(Net((0.1,)), Data())
    assert steps.count == 64 / callback.trial.batch_size
    assert outcomes(service.url, job) == ["converged", "early_stopped"]


def test_log_lines_have_the_choice_the_figures_and_the_outcome(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        callback = zeus(service.url, meter="cpu-estimate")
        trainer(callback).fit(Net(), Data())
    messages = [record.getMessage() for record in caplog.records]
    meter, chosen, measured, ended = [text for text in messages if text.startswith("zeus:")]
    assert "with cpu-estimate; not included: GPUs, memory, idle power" in meter
    assert "trains with batch size 8 (explore)" in chosen
    assert "J (estimated)" in measured
    assert "ended as converged" in ended


@pytest.mark.parametrize(
    ("script", "job"),
    [
        ("/home/me/my ranker/train.py", "my-ranker-train-Net"),
        ("/home/me/ranker/src/train.py", "ranker-train-Net"),
        ("/home/me/_ranker/.hidden/__main__.py", "hidden-__main__-Net"),
        (None, "nightly-Net"),  # as in a notebook
        ("train.py", "nightly-train-Net"),  # as under runpy
        (cProfile.__file__, "tests-programs-Net"),
        ("/venv/lib/site-packages/ray/_private/workers/default_worker.py", "tests-programs-Net"),
        (f"{sysconfig.get_path('scripts')}/train", "tests-programs-Net"),
    ],
)
def test_the_job_id_is_by_default_folder_script_and_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, job: str
) -> None:
    (tmp_path / "nightly").mkdir()
    (tmp_path / "nightly" / "train.py").touch()
    monkeypatch.chdir(tmp_path / "nightly")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
    assert default_job_id(Net()) == job


def test_a_class_that_was_sent_to_another_process_names_the_script_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = "/usr/lib/python3/dist-packages/submitit/core/_submit.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", worker, raising=False)
    names = {"__name__": "__main__", "Base": Net}
    body = "    def configure_optimizers(self): pass"
    exec(compile(f"class Ranker(Base):\n{body}", "/home/me/nightly/train.py", "exec"), names)
    assert default_job_id(names["Ranker"]()) == "nightly-train-Ranker"


def test_a_job_that_is_not_named_is_told_its_id(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", f"/{new_job()}/train.py", raising=False
    )
    callback = zeus(service.url, job_id=None)
    trainer(callback).fit(Net(), Data())
    told = f"zeus: the job is '{callback.job.job_id}', named after"
    assert caplog.text.count(told) == 1


def test_the_job_that_is_given_goes_before_the_environments_and_steps_bound_its_epochs(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_JOB_ID", "nightly")
    callback = zeus(service.url, job_id=(job := new_job()))
    trainer(callback, max_epochs=-1, max_steps=sys.maxsize).fit(Net((0.9,)), Data())
    assert (callback.job.job_id, callback.job.max_epochs) == (job, 2**31 - 1)
