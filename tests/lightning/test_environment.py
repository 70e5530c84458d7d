"""What a launcher sets for `ZeusBSOCallback` and `Recurrence`, and for power limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from lightning.pytorch import Callback
from programs import Data, Net, Raise, StepMeter, new_job, recurrence, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning import ZeusBSOCallback, ZeusServiceError
from zeus_lightning.run.record import TrialRecord


class Run(Protocol):
    """Trains once; the metric reaches the target or not."""

    def __call__(self, metric: float = 0.95, **arguments: Any) -> None: ...


def with_trainer(metric: float = 0.95, **arguments: Any) -> None:
    callback = ZeusBSOCallback(target_metric=0.9, monitor="val_acc", meter=StepMeter(), **arguments)
    trainer(callback).fit(Net((metric,)), Data(batch_size=16))


def in_a_loop(metric: float = 0.95, url: str | None = None, job_id: str | None = None) -> None:
    with recurrence(url, job_id) as run:
        run.report(metric)


both = pytest.mark.parametrize("run", [with_trainer, in_a_loop])


@pytest.fixture
def outcome_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "outcome.json"
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(path))
    return path


def outcome_in(path: Path) -> TrialRecord:
    run = TrialRecord.read(path)
    assert run is not None
    return run


def test_they_name_the_service_its_token_and_the_job(
    tmp_path: Path, outcome_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "of-at-least-16-characters"
    with ServiceProcess(tmp_path, ZEUS_BSO_TOKEN=token) as service:
        monkeypatch.setenv("ZEUS_SERVER_URL", service.url)
        for run in (with_trainer, in_a_loop):
            job = new_job()
            monkeypatch.setenv("ZEUS_JOB_ID", job)
            monkeypatch.delenv("ZEUS_BSO_TOKEN", raising=False)
            with pytest.raises(ZeusServiceError, match="401"):
                run()
            monkeypatch.setenv("ZEUS_BSO_TOKEN", token)
            run()
            seen = outcome_in(outcome_file)
            assert (seen.outcome, seen.trial.job_id) == ("converged", job)


class Reads(Callback):
    """Reads the outcome file at the start of each training epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[str | None, int | None]] = []

    def on_train_epoch_start(self, *args: object) -> None:
        run = outcome_in(self.path)
        self.seen.append((run.outcome, run.report and run.report.epoch))


def test_the_outcome_file_follows_the_trial_from_start_to_end(
    service: ServiceProcess, outcome_file: Path
) -> None:
    callback, reads = zeus(service.url), Reads(outcome_file)
    trainer(callback, reads).fit(Net(), Data())
    assert reads.seen == [(None, None), (None, 1), (None, 2)]
    run = outcome_in(outcome_file)
    assert (run.outcome, run.trial) == ("converged", callback.trial)
    assert (run.report, run.cost_j) == (callback.last_report, callback.cost_j)
    with pytest.raises(torch.OutOfMemoryError):
        trainer(zeus(service.url), Raise(torch.OutOfMemoryError("CUDA out of memory."))).fit(
            Net(), Data()
        )
    assert outcome_in(outcome_file).outcome == "out_of_memory"


def test_an_outcome_file_that_cannot_be_written_does_not_end_the_run(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(tmp_path / "missing" / "outcome.json"))
    callback = zeus(service.url)
    with pytest.warns(UserWarning, match="outcome file cannot be written"):
        trainer(callback).fit(Net(), Data())
    assert callback.outcome == "converged"


@both
def test_a_control_trial_trains_with_the_default_batch_size_of_the_job_itself(
    run: Run, service: ServiceProcess, outcome_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, records = new_job(), []
    for control in ("1", "0", "1"):
        monkeypatch.setenv("ZEUS_CONTROL", control)
        run(url=service.url, job_id=job)
        records.append(outcome_in(outcome_file))
    trials = [each.trial for each in records]
    assert {trial.job_id for trial in trials} == {job}
    assert [trial.why == "control" for trial in trials] == [True, False, True]
    assert [trial.batch_size for trial in trials if trial.why == "control"] == [16, 16]
    assert [trial.cost_bound for trial in trials if trial.why == "control"] == [None] * 2
