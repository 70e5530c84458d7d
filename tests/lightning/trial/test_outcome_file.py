"""The launcher of a run reads how its trial stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from programs import Data, Net, Raise, trainer, zeus
from service_process import ServiceProcess

from zeus_lightning.recur.ending import read_outcome


class Reads(Callback):
    """Reads the outcome file at the end of each training epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[str | None, int | None]] = []

    def on_train_epoch_start(self, *args: object) -> None:
        run = read_outcome(self.path)
        assert run is not None
        self.seen.append((run.outcome, run.report and run.report.epoch))


def test_it_follows_the_trial_from_start_to_end(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(path))
    callback, reads = zeus(service.url), Reads(path)
    trainer(callback, reads).fit(Net(), Data())
    assert reads.seen == [(None, None), (None, 1), (None, 2)]
    run = read_outcome(path)
    assert run is not None
    assert (run.outcome, run.trial, run.report) == ("converged", callback.trial, callback.report)
    assert run.cost == callback.cost
    assert list(tmp_path.iterdir()) == [path]


def test_it_names_the_outcome_of_a_run_that_an_exception_ends(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(path))
    with pytest.raises(torch.OutOfMemoryError):
        trainer(zeus(service.url), Raise(torch.OutOfMemoryError("CUDA out of memory."))).fit(
            Net(), Data()
        )
    run = read_outcome(path)
    assert run is not None
    assert run.outcome == "out_of_memory"


def test_one_that_cannot_be_written_does_not_end_the_run(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_OUTCOME_FILE", str(tmp_path / "missing" / "outcome.json"))
    callback = zeus(service.url)
    with pytest.warns(UserWarning, match="ZEUS_OUTCOME_FILE cannot be written"):
        trainer(callback).fit(Net(), Data())
    assert callback.outcome == "converged"
