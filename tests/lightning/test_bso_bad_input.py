"""Bad input ends at once with one clear message, before any step and with no trial left open."""

from __future__ import annotations

import math
from typing import Any

import pytest
import requests
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder, GradientAccumulationScheduler
from programs import Data, Dying, Net, Steps, new_job, outcomes, trainer, zeus
from service_process import ServiceProcess, free_port
from torch.utils.data import DataLoader
from waiting import LIMIT_S

from zeus_lightning import (
    ZeusBSOCallback,
    ZeusConfigError,
    ZeusError,
    ZeusJobConflict,
    ZeusMeterError,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eta_knob": 1.5}, r"eta_knob is 1.5; it must be in \[0, 1\]"),
        ({"beta_knob": 0}, "beta_knob is 0; it must be positive"),
        ({"beta_knob": math.nan}, "beta_knob is nan"),
        ({"target_metric": math.nan}, "target_metric is nan; it must be finite"),
        ({"mode": "up"}, "mode is 'up'; it must be 'min' or 'max'"),
        ({"max_epochs": 0}, "max_epochs is 0; it must be positive"),
        ({"lr_scaling": "cubic"}, "lr_scaling is 'cubic'"),
        ({"batch_sizes": []}, r"batch_sizes is \[\]; it must be one or more positive"),
        ({"batch_sizes": [8, 0]}, r"batch_sizes is \[8, 0\]"),
        ({"batch_arg_name": "a..b"}, "batch_arg_name is 'a..b'; it must be the name"),
        ({"batch_size_scope": "local"}, "batch_size_scope is 'local'; it must be 'global' or"),
        ({"batch_sizes": [True, 8]}, r"batch_sizes is \[True, 8\]"),
        ({"batch_sizes": 8}, "batch_sizes is 8"),
        ({"baseline_runs": 1}, "baseline_runs is 1; it must be 2 to 20"),
        ({"baseline_runs": 2.5}, "baseline_runs is 2.5; it must be an integer"),
        ({"default_batch_size": -1}, "default_batch_size is -1; it must be a positive integer"),
        ({"target_metric": "0.9"}, "target_metric is '0.9'; it must be a number"),
        (
            {"policy": {"rounds": 2}},
            "policy has the unknown option 'rounds'; use one of name, n",
        ),
        ({"policy": {"seed": True}}, "seed is True; it must be an integer"),
        ({"policy": {"name": ""}}, "the policy's name is ''"),
        ({"policy": 3}, "policy is 3; it must be a name or a dict of options"),
        ({"max_epochs": 2.5}, "max_epochs is 2.5; it must be an integer"),
        ({"monitor": ""}, "monitor is ''; it must be a metric's name"),
        (
            {"batch_sizes": [8, 16], "default_batch_size": 12},
            r"default batch size 12 is not among batch_sizes \[8, 16\]",
        ),
        ({"job_id": "a job"}, "job_id is 'a job'; it must be 1 to 255 letters, digits and"),
        ({"job_id": "x" * 256}, "job_id is"),
        ({"url": "localhost:8000"}, "url is 'localhost:8000'; it must look like http://HOST:PORT"),
        ({"url": "http://host:99999"}, "url is 'http://host:99999'"),
        ({"url": "http://me:secret@host"}, "url for host contains a user name"),
    ],
)
def test_an_invalid_argument_is_an_error_of_the_constructor(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ZeusConfigError, match=message) as error:
        ZeusBSOCallback(**({"url": "http://127.0.0.1:1", "target_metric": 0.9} | arguments))
    assert "secret" not in str(error.value)


class BareData(Data):
    def __init__(self) -> None:
        super().__init__()
        del self.batch_size

    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=8)


class EarlyData(Data):
    """Builds its loaders before anybody can set the batch size."""

    def setup(self, stage: str) -> None:
        sampler = torch.utils.data.BatchSampler(range(64), self.batch_size, drop_last=False)
        self.loaders = {"a": DataLoader(self.samples, batch_sampler=sampler)}

    def train_dataloader(self) -> Any:
        return self.loaders


class ReadOnlyData(Data):
    def __init__(self) -> None:
        super(Data, self).__init__()
        self.samples = Data().samples

    batch_size = property(lambda self: 8)


def tried(
    job: str,
    url: str,
    data: Any,
    trainer_arguments: dict[str, Any] | None = None,
    **arguments: Any,
) -> ZeusError:
    """The error a fit ends with, before any training step."""
    steps, callback = Steps(), zeus(url, job_id=job, **arguments)
    options = trainer_arguments or {}
    fit = trainer(callback, steps, *options.pop("callbacks", []), **options)
    with pytest.raises(ZeusError) as error:
        fit.fit(Net(), data)
    assert steps.count == 0
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (
            BareData(),
            {},
            "hparams; pass batch_arg_name=NAME, the attribute that",
        ),
        (Data(batch_size=None), {}, "batch_size of datamodule Data is None"),
        (
            Data(batch_size=12),
            {"batch_sizes": [8, 16]},
            "the default batch size 12 is not among batch_sizes [8, 16]",
        ),
        (
            Data(),
            {"batch_sizes": [8, 9, 11], "trainer_arguments": {"accumulate_grad_batches": 2}},
            "batch sizes [9, 11] are not divisible by 2",
        ),
        (
            Data(),
            {"trainer_arguments": {"callbacks": [GradientAccumulationScheduler({0: 1, 2: 4})]}},
            "GradientAccumulationScheduler changes accumulate_grad_batches, and with it",
        ),
        (
            Data(),
            {"trainer_arguments": {"max_epochs": -1}},
            "the Trainer's max_epochs is -1 and its max_steps -1",
        ),
        (
            Data(),
            {"trainer_arguments": {"callbacks": [BatchSizeFinder()]}},
            "BatchSizeFinder and ZeusBSOCallback both set the batch size",
        ),
        (
            LightningDataModule.from_datasets(Data().samples, batch_size=8),
            {},
            "and neither do its hparams; pass dataloaders to fit() instead",
        ),
        (
            Data(),
            {"batch_arg_name": "data.size"},
            "has no attribute 'data.size', and neither do its hparams",
        ),
        (Data(), {"meter": "perpetual-motion"}, "perpetual-motion"),
    ],
)
def test_an_invalid_program_is_an_error_before_the_service_is_called(
    service: ServiceProcess, data: Any, arguments: dict[str, Any], message: str
) -> None:
    job = new_job()
    error = tried(job, service.url, data, **arguments)
    assert isinstance(error, ZeusConfigError | ZeusMeterError)
    assert message in str(error)
    assert requests.get(f"{service.url}/api/v1/jobs/{job}", timeout=LIMIT_S).status_code == 404


class ConstantData(Data):
    def train_dataloader(self) -> Any:
        return DataLoader(self.samples, batch_size=8)


@pytest.mark.parametrize("data", [ConstantData, EarlyData])
def test_a_loader_that_does_not_follow_batch_size_is_an_error(
    service: ServiceProcess, data: type[Data]
) -> None:
    job = new_job()
    error = tried(job, service.url, data(), batch_sizes=[4, 8], default_batch_size=4)
    assert isinstance(error, ZeusConfigError)
    assert (
        "the callback set batch_size to 4 per device, but the train_dataloader() of datamodule "
        f"{data.__name__} has batches of 8; build loaders on each call with "
        "self.batch_size"
    ) in str(error)
    assert outcomes(service.url, job) == ["withdrawn"]


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (ReadOnlyData(), {}, "batch_size cannot be set to 8 on ReadOnlyData"),
        (Data(), {"meter": Dying(-1)}, "GPU 0 is lost"),
    ],
)
def test_an_error_before_the_first_step_withdraws_the_trial(
    service: ServiceProcess, data: Data, arguments: dict[str, Any], message: str
) -> None:
    job = new_job()
    error = tried(job, service.url, data, **arguments)
    assert message in str(error)
    assert outcomes(service.url, job) == ["withdrawn"]


def test_a_missing_url_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZEUS_SERVER_URL", raising=False)
    with pytest.raises(ZeusConfigError, match=r"pass url=... or set \$ZEUS_SERVER_URL"):
        trainer(zeus(None)).fit(Net(), Data())


def test_a_run_that_would_never_end_needs_the_service_that_may_know_its_epochs() -> None:
    callback = zeus(f"http://127.0.0.1:{free_port()}", require_service=False)
    with pytest.raises(ZeusConfigError, match=r"max_epochs is -1 .* would never end"):
        trainer(callback, max_epochs=-1).fit(Net(), Data())


def test_a_job_id_registered_with_another_configuration_is_an_error_that_lists_what_differs(
    service: ServiceProcess,
) -> None:
    job = new_job()
    trainer(zeus(service.url, job_id=job)).fit(Net(), Data())
    error = tried(job, service.url, Data(), target_metric=0.85, eta_knob=0.75)
    assert isinstance(error, ZeusJobConflict)
    assert set(error.fields["differences"]) == {"target_metric", "eta_knob"}
    assert "target_metric 0.8, not 0.85" in str(error)
    assert "Pass the registered values, use another job_id, or delete the job: " in str(error)
    assert outcomes(service.url, job) == ["converged"]


def test_an_unknown_policy_is_an_error(service: ServiceProcess) -> None:
    assert "astrology" in str(tried(new_job(), service.url, Data(), policy="astrology"))
