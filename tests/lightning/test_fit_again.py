"""`zeus_lightning.fit` trains again until a batch size has not failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from lightning.pytorch import Trainer
from programs import Data, Net, Raise, new_job, outcomes, trainer, trials, zeus
from service_process import ServiceProcess

import zeus_lightning
from zeus_lightning import ZeusConfigError, ZeusTrialFailed


def modules(*metrics: float) -> Any:
    """Makes modules that log these metrics, one after another."""
    left = iter(metrics)
    return lambda: Net((next(left),))


def test_it_returns_the_trainer_that_converged(service: ServiceProcess) -> None:
    job, made = new_job(), []

    def make_trainer() -> Trainer:
        made.append(trainer(zeus(service.url, job_id=job, raise_on_failure=False), max_epochs=2))
        return made[-1]

    found = zeus_lightning.fit(make_trainer, modules(0.1, 0.9), Data)
    assert found is made[1]
    assert outcomes(service.url, job) == ["not_converged", "converged"]


def test_a_run_out_of_memory_is_tried_again_and_another_error_is_not(
    service: ServiceProcess,
) -> None:
    memory = torch.OutOfMemoryError("CUDA out of memory.")
    job, errors = new_job(), iter([memory, memory, OSError("disk")])

    def make_trainer() -> Trainer:
        return trainer(zeus(service.url, job_id=job), Raise(next(errors)))

    with pytest.raises(ZeusTrialFailed, match="ended as out_of_memory") as raised:
        zeus_lightning.fit(make_trainer, Net, Data, retries=0)
    assert raised.value.__cause__ is memory
    with pytest.raises(OSError, match="disk"):
        zeus_lightning.fit(make_trainer, Net, Data)
    assert outcomes(service.url, job) == ["out_of_memory", "out_of_memory", "errored"]


def test_a_checkpoint_is_for_the_first_trial_alone(service: ServiceProcess, tmp_path: Path) -> None:
    job, path = new_job(), tmp_path / "first.ckpt"

    def make_trainer() -> Trainer:
        return trainer(zeus(service.url, job_id=job), max_epochs=2)

    broken = trainer(zeus(service.url, job_id=job), Raise(KeyError()), max_epochs=2)
    with pytest.raises(KeyError):
        broken.fit(Net((0.1,)), Data())
    broken.save_checkpoint(path)
    zeus_lightning.fit(make_trainer, modules(0.1, 0.9), Data, ckpt_path=path)
    assert outcomes(service.url, job)[-1] == "converged"


def test_a_failed_run_is_freed_before_the_next_one_and_the_last_failure_is_raised(
    service: ServiceProcess,
) -> None:
    job, made = new_job(), []

    def make_module() -> Net:
        assert all(module() is None for module in made)
        module = Net((0.1,))
        made.append(ref(module))
        return module

    def make_trainer() -> Trainer:
        return trainer(zeus(service.url, job_id=job), max_epochs=1)

    with pytest.raises(ZeusTrialFailed):
        zeus_lightning.fit(make_trainer, make_module, Data, retries=1)
    assert len(made) == len(outcomes(service.url, job)) == 2


def test_a_trainer_must_be_new_and_have_the_callback(service: ServiceProcess) -> None:
    same = trainer(zeus(service.url), max_epochs=1)
    with pytest.raises(ZeusConfigError, match="trained before"):
        zeus_lightning.fit(lambda: same, modules(0.1, 0.1), Data)
    with pytest.raises(ZeusConfigError, match="no ZeusBSOCallback"):
        zeus_lightning.fit(trainer, Net, Data)


def test_it_ends_with_a_control_trial_that_fails(service: ServiceProcess) -> None:
    job = new_job()

    def make_trainer() -> Trainer:
        return trainer(zeus(service.url, job_id=job, batch_sizes=[8]), max_epochs=1)

    with (
        pytest.warns(UserWarning, match="no batch size left to try, so .* with the default, 8, "),
        pytest.raises(ZeusTrialFailed, match="Another control trial would do the same: check the "),
    ):
        zeus_lightning.fit(make_trainer, lambda: Net((0.1,)), Data)
    assert [each["why"] for each in trials(service.url, job)] == ["explore", "control"]


def test_it_ends_with_a_baseline_that_fails(service: ServiceProcess) -> None:
    job, memory = new_job(), torch.OutOfMemoryError("CUDA out of memory.")

    def make_trainer(*others: Raise) -> Trainer:
        callback = zeus(service.url, job_id=job, target_metric=None, raise_on_failure=False)
        return trainer(callback, *others, max_epochs=2)

    with pytest.raises(ZeusTrialFailed, match="ended as diverged"):
        zeus_lightning.fit(make_trainer, lambda: Net((float("nan"),)), Data)
    with pytest.raises(ZeusTrialFailed, match="ended as out_of_memory"):
        zeus_lightning.fit(lambda: make_trainer(Raise(memory)), Net, Data)
    assert outcomes(service.url, job) == ["diverged", "out_of_memory"]
