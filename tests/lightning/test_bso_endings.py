"""However a run ends, its trial ends once with the right outcome, and nothing delays the end."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import training_process
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import (
    AfterEpoch,
    Data,
    Dying,
    Net,
    Raise,
    Steps,
    new_job,
    outcomes,
    trainer,
    trials,
    zeus,
)
from ranks import DEADLINE_S, run_ranks, running_ranks
from service.jobs import let_leases_expire
from service_process import ServiceProcess, free_port
from train_until_signalled import train, train_until_signalled
from waiting import LIMIT_S, wait_until

from zeus_lightning import ZeusBSOCallback, ZeusConfigError, ZeusTrialFailed


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ZeroDivisionError("mine"), "errored"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out_of_memory"),
    ],
)
def test_an_exception_ends_the_trial_and_comes_through_unchanged(
    service: ServiceProcess, error: BaseException, outcome: str
) -> None:
    callback = zeus(service.url, batch_sizes=[8, 16], default_batch_size=16)
    data = Data(batch_size=8)
    with pytest.raises(type(error)) as raised:
        trainer(callback, Raise(error)).fit(Net(), data)
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert callback.outcome == outcome
    assert data.batch_size == 8
    trainer(callback).fit(Net(), data)  # the callback is good for another fit
    assert callback.trial.trial_number == 2
    assert callback.trial.batch_size == (8 if outcome == "out_of_memory" else 16)
    assert outcomes(service.url, callback.job.job_id) == [outcome, "converged"]


def test_rank_zero_that_dies_of_its_error_has_ended_the_trial(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = {"ZEUS_JOB_ID": new_job()}
    assert run_ranks(tmp_path, {"bug-0": service.url}, env={"LET_THROUGH": "1"} | job) != 0
    assert outcomes(service.url, job["ZEUS_JOB_ID"]) == ["errored"]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork"])
def test_ctrl_c_ends_the_trial_as_interrupted(
    service: ServiceProcess, tmp_path: Path, strategy: str
) -> None:
    """The terminal sends it to all processes."""
    outcome_file = tmp_path / "outcome.json"
    job = {"ZEUS_JOB_ID": new_job(), "ZEUS_OUTCOME_FILE": str(outcome_file)}
    endless = {"endless": service.url}
    with running_ranks(tmp_path, endless, env=job, strategy=strategy, max_epochs=-1) as (process,):
        wait_until((tmp_path / "endless.begun").exists)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=DEADLINE_S)
    assert outcomes(service.url, job["ZEUS_JOB_ID"]) == ["interrupted"]
    assert json.loads(outcome_file.read_text())["outcome"] == "interrupted"


def test_a_killed_run_is_lost_when_its_lease_ends_and_resumed_in_another_process(
    own_service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    def check() -> None:
        assert outcomes(own_service.url, job) == ["lost", None]  # the next run goes on
        raise Enough

    monkeypatch.chdir(tmp_path)
    job = new_job()
    with training_process(train_until_signalled, tmp_path, own_service.url, job) as process:
        process.kill()
    assert outcomes(own_service.url, job) == [None]
    saved = (tmp_path / "last.ckpt").rename(tmp_path / "of_the_killed_run.ckpt")
    let_leases_expire(own_service.database_url)
    with pytest.raises(Enough):
        train(own_service.url, job, 0.1, check)
    train(own_service.url, job, 0.9, print, saved)
    assert outcomes(own_service.url, job) == ["converged", "errored", "withdrawn"]


def test_slurms_requeue_interrupts_the_trial_and_the_requeued_run_resumes_it(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nkill -TERM $PPID\n')  # it kills
    scontrol.chmod(0o755)
    slurm = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
    }
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    job = new_job()
    with training_process(train_until_signalled, tmp_path, service.url, job) as process:
        os.kill(process.pid, signal.SIGUSR1)
        process.join(LIMIT_S)
    assert (tmp_path / "asked").read_text() == "requeue 42\n"
    assert outcomes(service.url, job) == ["interrupted"]
    monkeypatch.chdir(tmp_path)
    train(service.url, job, 0.9, print)
    assert outcomes(service.url, job) == ["converged", "withdrawn"]


def test_without_raise_on_failure_fit_ends_with_a_warning(service: ServiceProcess) -> None:
    callback = zeus(service.url, raise_on_failure=False)
    with pytest.warns(UserWarning, match="ended as not_converged.*may get another"):
        trainer(callback).fit(Net((0.1,)), Data())
    assert callback.outcome == "not_converged"
    other = zeus(service.url, raise_on_failure=False)
    unlogged = "without a validation, so 'val_acc' was never logged"
    with pytest.raises(ZeusConfigError, match=unlogged):
        trainer(other, max_steps=3).fit(Net(), Data())
    assert outcomes(service.url, other.job.job_id) == ["errored"]


def test_a_failure_that_another_error_comes_before_is_a_warning(service: ServiceProcess) -> None:
    class Breaks(Callback):
        def on_train_end(self, *args: Any) -> None:
            raise OSError("mine")

    with (
        pytest.warns(UserWarning, match="ended as not_converged.*may get another"),
        pytest.raises(OSError, match="mine"),
    ):
        trainer(zeus(service.url, max_epochs=1), Breaks()).fit(Net((0.1,)), Data())


def test_training_that_ends_short_of_the_target_fails_the_batch_size(
    service: ServiceProcess,
) -> None:
    callback = zeus(service.url)
    reason = "training ended short of the target of 0.8"
    with pytest.raises(ZeusTrialFailed, match=f"not_converged: {reason}"):
        trainer(callback, max_epochs=-1, max_steps=20).fit(Net((0.1,)), Data())
    assert callback.job.max_epochs == 20
    assert outcomes(service.url, callback.job.job_id) == ["not_converged"]


def test_a_target_reached_while_the_service_was_away_counts_when_it_is_back(
    own_service: ServiceProcess,
) -> None:
    class BackAtTheEnd(AfterEpoch):
        def on_train_end(self, *args: Any) -> None:
            own_service.start()

    pause = BackAtTheEnd(1, own_service.kill)
    callback, steps = zeus(own_service.url), Steps()
    trainer(pause, callback, steps, max_epochs=9).fit(Net((0.1, 0.9)), Data())
    (trial,) = trials(own_service.url, callback.job.job_id)
    assert trial["outcome"] == callback.outcome == "converged"
    assert trial["cost"] == pytest.approx(0.5 * 12 + 0.5 * 10 * 4)  # of the second validation
    assert callback.cost_j == pytest.approx(trial["cost"])
    assert steps.count == 2 * 8


def test_a_run_ends_at_the_target_also_if_the_service_stays_away_and_has_no_verdict(
    own_service: ServiceProcess,
) -> None:
    callback, steps = zeus(own_service.url), Steps()
    away = AfterEpoch(1, own_service.kill)
    text = "ended as lost: training ended before the service had decided, and the service"
    with pytest.warns(UserWarning, match=text):
        trainer(away, callback, steps, max_epochs=4).fit(Net((0.1, 0.9)), Data())
    assert callback.outcome == "lost"
    assert steps.count == 2 * 8


def test_a_batch_size_so_small_that_max_steps_end_before_a_validation_has_failed(
    service: ServiceProcess,
) -> None:
    job, sizes = new_job(), {"batch_sizes": [4, 8], "default_batch_size": 8}
    trainer(zeus(service.url, job_id=job, **sizes), max_steps=8).fit(Net((0.9,)), Data())
    with pytest.raises(ZeusTrialFailed, match="max_steps=8 ended training without a validat"):
        trainer(zeus(service.url, job_id=job, **sizes), max_steps=8).fit(Net(), Data())
    again = zeus(service.url, job_id=job, **sizes)
    trainer(again, max_steps=8).fit(Net((0.9,)), Data())
    assert again.trial.batch_size == 8
    assert outcomes(service.url, job) == ["converged", "not_converged", "converged"]


def test_without_a_trial_training_still_ends_at_the_target(service: ServiceProcess) -> None:
    def epochs(callback: ZeusBSOCallback) -> int:
        steps = Steps()
        trainer(callback, steps, max_epochs=8).fit(Net((0.1, 0.1, 0.1, 0.9)), Data())
        return steps.count // 8

    broken = zeus(service.url, meter=Dying(4))
    with pytest.warns(UserWarning, match="zeus: GPU 0 is lost"):
        assert epochs(broken) == 4
    assert outcomes(service.url, broken.job.job_id) == ["errored"]
    away = zeus(f"http://127.0.0.1:{free_port()}", require_service=False)
    with pytest.warns(UserWarning, match="training without it"):
        assert epochs(away) == 4


@pytest.mark.parametrize(
    ("arguments", "files", "told"),
    [
        ({"every_n_epochs": 5}, 0, True),
        ({}, 1, False),
        ({"every_n_epochs": 5, "save_last": True}, 1, False),
        ({"save_top_k": 0}, 0, False),  # the user wants none
    ],
)
def test_only_a_checkpoint_that_was_not_due_yet_is_a_warning(
    service: ServiceProcess, tmp_path: Path, arguments: dict[str, Any], files: int, told: bool
) -> None:
    saves = ModelCheckpoint(tmp_path, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(zeus(service.url), saves, enable_checkpointing=True).fit(Net((0.9,)), Data())
    assert len(list(tmp_path.iterdir())) == files
    text = "reached its target before ModelCheckpoint saved a checkpoint"
    texts = [str(each.message) for each in caught]
    assert [text in each for each in texts if "checkpoint" in each.lower()] == [True] * told
