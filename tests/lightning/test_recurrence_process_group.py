"""`Recurrence` on two ranks of `torch.distributed`: before, during and after its process group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from programs import new_job, outcomes, recurrence, trials
from service_process import ServiceProcess

from zeus_lightning import PowerLimit, ZeusConfigError, ZeusServiceUnavailable


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
