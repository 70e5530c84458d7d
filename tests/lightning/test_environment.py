"""What a launcher sets for `ZeusBSOCallback` and `Recurrence`, and for power limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
from fake_nvml import FakeGpu
from gpu_programs import DriversClock, GpuNet, fit, power
from lightning.pytorch import Callback, LightningModule, Trainer
from programs import Data, Net, StepMeter, new_job, trainer
from service_process import ServiceProcess
from typing_extensions import override

from zeus_lightning import (
    Recurrence,
    ZeusBSOCallback,
    ZeusConfigError,
    ZeusServiceError,
    ZeusTrialFailed,
)
from zeus_lightning.recur.ending import RunOutcome, read_outcome


class Run(Protocol):
    """Trains once; the metric reaches the target or not."""

    def __call__(self, metric: float = 0.95, **arguments: Any) -> None: ...


def with_trainer(metric: float = 0.95, **arguments: Any) -> None:
    callback = ZeusBSOCallback(target_metric=0.9, meter=StepMeter(), **arguments)
    trainer(callback).fit(Net((metric,)), Data(batch_size=16))


def in_a_loop(metric: float = 0.95, **arguments: Any) -> None:
    with Recurrence(
        target_metric=0.9,
        batch_sizes=[8, 16, 32],
        default_batch_size=16,
        max_epochs=4,
        meter=StepMeter(),
        **arguments,
    ) as run:
        run.report(metric)


both = pytest.mark.parametrize("run", [with_trainer, in_a_loop])


@pytest.fixture
def outcome_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "outcome.json"
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(path))
    return path


def outcome_in(path: Path) -> RunOutcome:
    run = read_outcome(path)
    assert run is not None
    return run


@both
def test_they_name_the_service_its_token_and_the_job(
    run: Run, tmp_path: Path, outcome_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, token = new_job(), "of-at-least-16-characters"
    with ServiceProcess(tmp_path, ZEUS_BSO_TOKEN=token) as service:
        monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
        monkeypatch.setenv("ZEUS_JOB_ID", job)
        with pytest.raises(ZeusServiceError, match="401"):
            run()
        monkeypatch.setenv("ZEUS_BSO_TOKEN", token)
        run()
    seen = outcome_in(outcome_file)
    assert (seen.outcome, seen.trial.job_id) == ("converged", job)


@both
def test_one_says_what_a_failed_batch_size_does_unless_an_argument_does(
    run: Run, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**arguments: Any) -> None:
        run(0.1, url=service.url, job_id=new_job(), **arguments)

    monkeypatch.setenv("ZEUS_ON_FAILURE", "")
    with pytest.raises(ZeusTrialFailed):
        fail()
    monkeypatch.setenv("ZEUS_ON_FAILURE", "exit")
    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == 75
    with pytest.raises(ZeusTrialFailed):
        fail(on_failure="raise")
    monkeypatch.setenv("ZEUS_ON_FAILURE", "stop")
    fail()
    monkeypatch.setenv("ZEUS_ON_FAILURE", "retry")
    with pytest.raises(ZeusConfigError, match=r"\$ZEUS_ON_FAILURE is 'retry'; it must be 'raise'"):
        fail()


def _break_after_the_last_report(loop: Recurrence) -> None:
    with loop as run:
        assert run.report(0.1).stop
        raise ZeroDivisionError


def test_an_error_after_a_failed_batch_size_is_raised_also_with_exit(
    service: ServiceProcess,
) -> None:
    class Broken(Callback):
        @override
        def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            raise ZeroDivisionError

    arguments: dict[str, Any] = {
        "target_metric": 0.9,
        "max_epochs": 1,
        "batch_sizes": [8, 16],
        "default_batch_size": 8,
        "meter": StepMeter(),
        "on_failure": "exit",
    }
    zeus = ZeusBSOCallback(service.url, job_id=new_job(), **arguments)
    with pytest.raises(ZeroDivisionError):
        trainer(zeus, Broken()).fit(Net((0.1,)), datamodule=Data(batch_size=8))
    assert zeus.outcome == "not_converged"
    loop = Recurrence(service.url, job_id=new_job(), **arguments)
    with pytest.raises(ZeroDivisionError):
        _break_after_the_last_report(loop)
    assert loop.outcome == "not_converged"


@both
def test_a_control_trial_trains_with_the_default_batch_size_of_the_job_itself(
    run: Run, service: ServiceProcess, outcome_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, trials = new_job(), []
    for control in ("1", "0", "1", "1"):
        monkeypatch.setenv("ZEUS_CONTROL", control)
        run(url=service.url, job_id=job)
        trials.append(outcome_in(outcome_file).trial)
    assert {trial.job_id for trial in trials} == {job}
    assert [trial.why == "control" for trial in trials] == [True, False, True, True]
    assert [trial.batch_size for trial in trials if trial.why == "control"] == [16, 16, 16]
    assert [trial.cost_bound for trial in trials if trial.why == "control"] == [None] * 3


@pytest.mark.parametrize(("value", "limits"), [("1", {250}), ("0", None), ("", None)])
def test_a_control_trial_sets_no_power_limit(
    gpu: FakeGpu,
    gpu_meter: DriversClock,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    limits: set[int] | None,
) -> None:
    monkeypatch.setenv("ZEUS_CONTROL", value)
    callback, net = power(meter=gpu_meter), GpuNet(gpu)
    fit(callback, net)
    assert (set(net.limits_w) == {250}) == (limits is not None)
    assert (callback.limit_w is None) == (limits is not None)
