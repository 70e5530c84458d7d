"""`on_failure="exit"`: a scheduler that knows exit statuses alone launches the run again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from programs import Data, Net, Raise, new_job, outcomes, trainer, zeus
from ranks import run_ranks
from service_process import ServiceProcess
from torch.multiprocessing import ProcessExitedException


class Ending(Callback):
    """Records how Lightning ends the run."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_exception(self, *args: object) -> None:
        self.seen.append("on_exception")

    def teardown(self, *args: object, **arguments: object) -> None:
        self.seen.append("teardown")


def test_a_failed_batch_size_ends_the_process_with_status_75(service: ServiceProcess) -> None:
    callback, ending = zeus(service.url, on_failure="exit"), Ending()
    with (
        pytest.warns(UserWarning, match="ended as not_converged.*Run the job again"),
        pytest.raises(SystemExit) as ended,
    ):
        trainer(callback, ending).fit(Net((0.1,)), Data())
    assert ended.value.code == 75
    assert callback.outcome == "not_converged"
    assert ending.seen == ["teardown"]  # it ends in order


def test_so_does_one_that_runs_out_of_memory_after_its_traceback(
    service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, ending = zeus(service.url, on_failure="exit"), Ending()
    error = torch.OutOfMemoryError("CUDA out of memory.")
    runner = trainer(callback, Raise(error), ending)
    torn_down = []
    runner.strategy.teardown = lambda: torn_down.append("strategy")
    with pytest.raises(SystemExit) as ended:
        runner.fit(Net(), Data())
    assert ended.value.code == 75
    assert ended.value.__context__ is error
    assert ending.seen == ["on_exception"]  # Lightning's order at an error, to its end
    assert torn_down == ["strategy"]
    assert "OutOfMemoryError: CUDA out of memory." in capsys.readouterr().err
    assert callback.job is not None
    assert outcomes(service.url, callback.job.job_id) == ["out_of_memory"]


def test_any_other_end_is_what_it_was(service: ServiceProcess) -> None:
    trainer(zeus(service.url, on_failure="exit")).fit(Net(), Data())
    for error in (ZeroDivisionError("mine"), SystemExit(3)):
        with pytest.raises(type(error)) as ended:
            trainer(zeus(service.url, on_failure="exit"), Raise(error)).fit(Net(), Data())
        assert ended.value is error


class RankDies(Callback):
    """Raises at the end what Lightning raises in the process that started a rank that died."""

    def __init__(self, status: int) -> None:
        self.error = ProcessExitedException("died", error_index=1, error_pid=1, exit_code=status)

    def on_train_end(self, *args: object) -> None:
        raise self.error


def test_a_rank_that_dies_of_something_else_after_its_batch_size_failed_is_no_try_again(
    service: ServiceProcess,
) -> None:
    for status, expected in ((75, SystemExit), (-11, ProcessExitedException)):
        callback = zeus(service.url, on_failure="exit")
        with pytest.raises(expected):
            trainer(callback, RankDies(status)).fit(Net((0.1,)), Data())
        assert callback.outcome == "not_converged"


@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork"])
def test_two_ranks_end_with_it_too_whichever_ends_first(
    service: ServiceProcess, tmp_path: Path, strategy: str
) -> None:
    job = {"ZEUS_JOB_ID": new_job()}
    status = run_ranks(tmp_path, {"exits": service.url}, strategy=strategy, env=job, fresh=True)
    assert status == 75
    assert outcomes(service.url, job["ZEUS_JOB_ID"]) == ["not_converged"]
