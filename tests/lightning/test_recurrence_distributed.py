"""`Recurrence` and `PowerLimit` on two ranks that Fabric starts: both proceed, or both raise.

And on two of `torch.distributed`: before, during and after its process group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_nvml import FakeDriver
from programs import new_job, outcomes, recurrence, trials
from ranks import run_ranks, seen
from service_process import ServiceProcess

from zeus_lightning import PowerLimit, ZeusConfigError, ZeusServiceUnavailable

SCRIPT = Path(__file__).with_name("loop_on_ranks.py")
SCENARIOS = ("converges", "misses", "resumes", "early", "power", "observes")
Ranks = list[dict[str, Any]]


class Run:
    """Scenarios that two ranks have run, one after the other."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def seen(self, scenario: str) -> Ranks:
        ranks = seen(self.folder, scenario)
        assert [rank["rank"] for rank in ranks] == [0, 1]
        return ranks


@pytest.fixture(scope="module")
def run(
    fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory, service: ServiceProcess
) -> Run:
    folder = tmp_path_factory.mktemp("fabric")
    driver = FakeDriver(fake_nvml_library, folder / "driver")
    for gpu in driver.gpus:
        gpu.limit_mw = 250_000
        gpu.set_load(1)
    env = driver.variables | {"XDG_STATE_HOME": str(folder / "state")}
    urls = dict.fromkeys([*SCENARIOS, "memory-1"], service.url)  # the last one ends the ranks
    assert run_ranks(folder, urls, script=SCRIPT, env=env) != 0
    return Run(folder, service.url)


def test_rank_zeros_metric_stops_both_and_energy_is_that_of_both(run: Run) -> None:
    (trial,) = trials(run.url, "converges")
    assert trial["outcome"] == "converged"
    assert trial["energy_j"] == pytest.approx(2 * 12)
    for rank in run.seen("converges"):
        assert (rank["outcome"], rank["reports"], rank["error"]) == ("converged", 2, None)
        assert rank["local_batch_size"] == 8
        assert rank["cost"] == trial["cost"]


def test_a_failed_batch_size_raises_on_both(run: Run) -> None:
    assert outcomes(run.url, "misses") == ["not_converged"]
    for rank in run.seen("misses"):
        assert rank["outcome"] == "not_converged"
        assert rank["error"][0] == "ZeusTrialFailed"


def test_a_checkpoints_trial_is_resumed_on_both_if_only_rank_zero_has_it(run: Run) -> None:
    (trial,) = trials(run.url, "resumes")
    assert trial["outcome"] == "converged"
    assert trial["epoch"] == 2
    assert trial["energy_j"] == pytest.approx(2 * (12 + 6))
    assert [rank["trial"] for rank in run.seen("resumes")] == [1, 1]


@pytest.mark.parametrize(
    ("scenario", "error", "text", "left"),
    [
        ("early", "ZeusConfigError", "rank 0: reports; rank 1: leaves the block", ["withdrawn"]),
        # a warning of rank 1's GPU, which the program has made an error
        ("observes", "ZeusError", "is already 250 W, its value before process 1", []),
    ],
)
def test_what_is_wrong_on_one_rank_is_the_same_error_on_both(
    run: Run, scenario: str, error: str, text: str, left: list[str]
) -> None:
    for rank in run.seen(scenario):
        assert rank["error"][0] == error
        assert text in rank["error"][1]
    assert outcomes(run.url, scenario) == left


def test_both_set_the_same_limit_before_the_same_batch_and_restore_it(run: Run) -> None:
    first, second = run.seen("power")
    assert first["limits_w"] == second["limits_w"]
    assert set(first["limits_w"]) == {300, 200, 100}
    assert first["limits_w"][-1] == first["limit_w"] == second["limit_w"]
    assert first["profile"] == second["profile"]
    assert (first["profile"]["num_devices"], first["profile"]["batch_size"]) == (2, 16)
    for point in first["profile"]["points"]:
        assert point["time_s"] >= 0.004  # the slower rank's
    assert first["after_w"] == second["after_w"] == 250


def test_an_error_on_rank_one_is_reported_by_it_and_ends_the_run(run: Run) -> None:
    assert outcomes(run.url, "memory-1") == ["out_of_memory"]


# A process group of the program's own


def set_up(rank: int, folder: Path) -> None:
    """Set up the process group of two ranks."""
    folder.mkdir(exist_ok=True)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2
    )


def on_one_rank(rank: int, folder: Path, url: str, job: str, other: str) -> None:
    """Train twice on both ranks; then rank zero finds no service; then the group changes."""
    set_up(rank, folder / "own")
    seen = []
    for _ in range(2):
        with recurrence(url, job) as run:
            seen.append(run.local_batch_size)
            assert not run.report(0.1).stop
            assert run.report(0.95 if rank == 0 else 0.2).stop
        assert run.outcome == "converged"
    assert seen == [8, 4]
    nobody = "http://127.0.0.1:9"
    with pytest.raises(ZeusServiceUnavailable), recurrence(nobody if rank == 0 else url, job):
        pass  # rank zero's error is raised on both
    torch.distributed.destroy_process_group()
    change_group(rank, folder, url, other)


def test_on_two_ranks_both_do_as_rank_zero_and_their_group_may_not_change(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job, other = new_job(), new_job()
    torch.multiprocessing.start_processes(
        on_one_rank, (tmp_path, service.url, job, other), nprocs=2, start_method="forkserver"
    )
    first, second = trials(service.url, job)
    assert first["outcome"] == second["outcome"] == "converged"
    assert first["energy_j"] == pytest.approx(2 * 12)
    for each in (other, f"{other}-0", f"{other}-1", f"{other}-0-left", f"{other}-1-left"):
        assert outcomes(service.url, each) == ["withdrawn"]


def test_a_rank_whose_process_group_is_not_set_up_is_no_run_of_its_own(
    service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    job = new_job()
    for block in (recurrence(service.url, job), PowerLimit(batch_size=8)):
        with pytest.raises(ZeusConfigError, match=r"rank 1 of 2 .*, but torch.distributed"), block:
            pass


def change_group(rank: int, folder: Path, url: str, job: str) -> None:
    """Set the process group up within a block, then end it within the next one."""

    def report_after(change: Callable[[], None], job_id: str) -> None:
        with recurrence(url, job_id) as run:
            change()
            run.report(0.95)

    def leave_after(change: Callable[[], None], job_id: str) -> None:
        with recurrence(url, job_id) as run:
            run.report(0.1)
            change()

    with pytest.raises(ZeusConfigError, match="changed from 1 to 2"):
        leave_after(partial(set_up, rank, folder / "first"), f"{job}-{rank}-left")
    torch.distributed.destroy_process_group()
    with pytest.raises(ZeusConfigError, match="changed from 1 to 2"):
        report_after(partial(set_up, rank, folder), f"{job}-{rank}")
    with pytest.raises(ZeusConfigError, match="changed from 2 to 1"):
        report_after(torch.distributed.destroy_process_group, job)
