"""`Recurrence`: a trial around a loop that its author owns, on one rank."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from forked import default_sigterm
from programs import new_job, outcomes, recurrence, trials
from service_process import ServiceProcess, free_port
from torch.utils.data import DataLoader
from waiting import LIMIT_S

from zeus_lightning import (
    Recurrence,
    ZeusConfigError,
    ZeusMeterError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.client import BSOClient


def train(run: Recurrence, *metrics: float) -> int:
    """Report these metrics until one stops the loop; returns how many were reported."""
    for count, metric in enumerate(metrics, 1):
        if run.report(metric).stop:
            return count
    return len(metrics)


def interrupted(
    run: Recurrence, error: BaseException, states: list[dict[str, Any]] | None = None
) -> None:
    with run:
        run.report(0.1)
        if states is not None:
            states.append(run.state_dict())
        raise error


def test_a_loop_that_reaches_the_target_is_stopped_and_its_cost_known(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with recurrence(service.url, job) as run:
        assert (run.batch_size, run.local_batch_size) == (16, 16)
        assert run.trial is not None
        assert run.trial.why == "explore"
        verdict = run.report(0.5)
        assert (verdict.stop, verdict.outcome) == (False, None)
        assert verdict.cost == pytest.approx(0.5 * 6 + 0.5 * 10 * 2)
        assert train(run, 0.95, 0.99) == 1
        late = run.report(0.1)  # a loop may stop later than it is told to
        assert (late.stop, late.outcome) == (True, "converged")
    assert run.outcome == "converged"
    assert outcomes(service.url, job) == ["converged"]
    assert run.cost_j == pytest.approx(0.5 * 12 + 0.5 * 10 * 4)
    with recurrence(service.url, job) as run:
        assert run.batch_size == 8
        train(run, 0.95)


def test_a_loop_that_ends_short_of_the_target_raises_as_the_block_is_left(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with (
        pytest.raises(ZeusTrialFailed, match="next run may get another size"),
        recurrence(service.url, job) as run,
    ):
        train(run, 0.1, 0.2)
    assert run.outcome == "not_converged"
    with (
        pytest.warns(UserWarning, match="not_converged"),
        recurrence(service.url, job, raise_on_failure=False) as run,
    ):
        train(run, 0.1)
    assert outcomes(service.url, job) == ["not_converged", "not_converged"]


def test_a_loop_without_a_target_learns_one_from_its_first_runs(service: ServiceProcess) -> None:
    job, seen = new_job(), []
    learns = {"target_metric": None, "baseline_runs": 2}
    for _ in range(3):
        with recurrence(service.url, job, **learns) as run:
            reports = train(run, 0.3, 0.9, 0.5)
        assert run.job is not None
        seen.append((run.outcome, reports, run.job.target_metric))
    assert seen == [("completed", 3, None), ("converged", 3, None), ("converged", 2, 0.9)]


@pytest.mark.parametrize(
    ("metric", "reports", "outcome"), [(0.1, 4, "not_converged"), (float("nan"), 1, "diverged")]
)
def test_the_service_stops_the_loop_of_a_failed_batch_size(
    service: ServiceProcess, metric: float, reports: int, outcome: str
) -> None:
    with recurrence(service.url, new_job(), raise_on_failure=False) as run:
        assert train(run, *[metric] * 10) == reports  # of four epochs
    assert run.outcome == outcome


def test_numbers_of_torch_and_numpy_are_taken_as_they_are_printed(
    service: ServiceProcess,
) -> None:
    sizes = {"batch_sizes": np.array([8, 16]), "default_batch_size": np.int64(16)}
    with recurrence(service.url, new_job(), **sizes, max_epochs=np.int64(4)) as run:
        half = torch.tensor(0.5, dtype=torch.bfloat16)
        assert run.report(half, epoch=np.int64(1)).outcome is None  # type: ignore[arg-type]
        assert run.report(torch.tensor(0.9), epoch=1.5).outcome == "converged"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ZeroDivisionError("mine"), "errored"),
        (KeyboardInterrupt(), "interrupted"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
    ],
)
def test_an_exception_ends_the_trial_and_goes_on(
    service: ServiceProcess, error: BaseException, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job()
    run = recurrence(service.url, job)
    with pytest.raises(type(error)) as raised:
        interrupted(run, error)
    assert raised.value is error
    assert run.outcome == outcome
    assert ("may get another" in caplog.text) == (outcome == "out_of_memory")
    assert outcomes(service.url, job) == [outcome]


def terminated(run: Recurrence) -> None:
    with run:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LIMIT_S)  # the handler ends it


def test_sigterm_ends_the_trial_as_interrupted_and_its_handler_is_put_back(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with default_sigterm():
        with pytest.raises(SystemExit) as raised:
            terminated(recurrence(service.url, job))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert raised.value.code == 128 + signal.SIGTERM
    assert outcomes(service.url, job) == ["interrupted"]


def test_a_handler_of_sigterm_that_the_program_sets_in_the_block_stays(
    service: ServiceProcess,
) -> None:
    with default_sigterm():
        with recurrence(service.url, new_job()) as run:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            run.report(0.95)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_loop_without_a_report_teaches_nothing(service: ServiceProcess) -> None:
    job = new_job()
    with recurrence(service.url, job) as run:
        pass
    assert run.outcome == "errored"


def test_a_checkpoints_trial_is_resumed_with_what_it_had_spent(service: ServiceProcess) -> None:
    job = new_job()
    states: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(recurrence(service.url, job), KeyboardInterrupt(), states)
    state = json.loads(json.dumps(states[0]))  # plain values
    with recurrence(service.url, job, state=state) as run:
        assert run.trial is not None
        assert run.trial.trial_number == 1
        verdict = run.report(0.95)
        assert verdict.outcome == "converged"
    (trial,) = trials(service.url, job)
    assert trial["epoch"] == 2
    assert trial["energy_j"] == pytest.approx(12 + 6)
    with (
        pytest.raises(ZeusConfigError, match=r"ended as converged.*start a new trial"),
        recurrence(service.url, job, state=state),
    ):
        pass


def test_a_checkpoint_after_the_block_has_the_trial_as_it_ended(service: ServiceProcess) -> None:
    run = recurrence(service.url, new_job())
    with pytest.raises(KeyboardInterrupt):
        interrupted(run, KeyboardInterrupt())
    state = run.state_dict()  # the meter has been read for the report and for the end alone
    assert state["outcome"] == "interrupted"
    assert state["spent"]["energy_j"] == pytest.approx(12)
    assert run.state_dict() == state


def test_without_the_service_it_raises_or_trains_without_a_trial(service: ServiceProcess) -> None:
    nobody, sizes = f"http://127.0.0.1:{free_port()}", {"default_batch_size": np.int64(16)}
    run = recurrence(nobody, "a", **sizes)
    for _ in range(2):  # it can be entered again
        refused = f"{nobody}.*Connection refused.*pass require_service=False"
        with pytest.raises(ZeusServiceUnavailable, match=refused), run:
            pass
    run = recurrence(nobody, "a", **sizes, require_service=False)
    with pytest.warns(UserWarning, match="training without it, with batch size 16"):
        run.__enter__()
    assert train(run, 0.1, 0.99, 0.99) == 2  # the target is known without the service
    state = run.state_dict()
    assert state == {}
    DataLoader([1.0], batch_size=run.local_batch_size)
    run.__exit__(None, None, None)
    assert (run.trial, run.outcome, run.cost_j) == (None, None, None)
    with recurrence(service.url, new_job(), state=state) as run:  # of a run without a trial
        train(run, 0.5, 0.95)
    assert run.outcome == "converged"


def test_a_trial_that_is_given_up_leaves_a_loop_that_ends_at_the_target(
    service: ServiceProcess,
) -> None:
    job = new_job()
    with recurrence(service.url, job) as run:
        assert not run.report(0.1).stop
        assert run.trial is not None
        BSOClient(service.url).end_trial(run.trial, "withdrawn", "it was ended from outside")
        with pytest.warns(UserWarning, match="training continues without reports"):
            assert train(run, 0.1, 0.1, 0.9, 0.9) == 3
    assert run.outcome == "errored"
    assert outcomes(service.url, job) == ["withdrawn"]


def test_what_is_wrong_with_the_arguments_is_said_before_anything_starts(
    service: ServiceProcess,
) -> None:
    with pytest.raises(ZeusConfigError, match="no job given"):
        recurrence(service.url, None)
    with pytest.raises(ZeusConfigError, match="url is 'localhost'"):
        recurrence("localhost", "a")
    job = new_job()
    with pytest.raises(ZeusMeterError), recurrence(service.url, job, meter="nvml:0"):
        pass


def test_a_loop_must_say_whether_its_metric_rises(service: ServiceProcess) -> None:
    job = new_job()
    message = "'metric' does not .* should rise or fall; pass mode='max' or mode='min', or correct"
    with pytest.raises(ZeusConfigError, match=message), recurrence(service.url, job, mode=None):
        pass
    with recurrence(service.url, job, mode=None, monitor="val_loss", target_metric=0.2) as run:
        assert train(run, 0.5, 0.1) == 2
    assert run.outcome == "converged"


def test_it_is_one_run_and_reports_are_made_within_its_block(service: ServiceProcess) -> None:
    job = new_job()
    run = recurrence(service.url, job)
    with pytest.raises(ZeusConfigError, match="with Recurrence"):
        run.report(0.95)
    with run:
        train(run, 0.5, 0.6, 0.7, 0.95)
    with pytest.raises(ZeusConfigError, match="create a new one"), run:
        train(run, 0.5, 0.95)
    assert outcomes(service.url, job) == ["converged"]
