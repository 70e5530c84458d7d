"""Meters on two ranks that gloo connects; see also `test_distributed.py`."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from fake_powercap import FakePowercap
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy
from programs import StepMeter

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.meters import Reading, rapl
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.meters.rapl import RaplMeter
from zeus_lightning.run.run_meter import RunMeter

WORLD_SIZE = 2


def check_meters(strategy: Strategy, rank: int, powercap: Path) -> None:
    """A meter that only the other rank cannot open is closed on this one."""
    rapl.POWERCAP = powercap
    with pytest.raises(ZeusConfigError, match="'perpetual'"):
        RunMeter(("rapl", "perpetual")[rank], strategy)
    assert [thread.name for thread in threading.enumerate() if "rapl" in thread.name] == []


def check_combined_meter(strategy: Strategy, rank: int, powercap: Path) -> None:
    """Each rank's GPUs are summed, and the packages of their host are counted once."""
    packages = RaplMeter(powercap)
    meter = RunMeter(CombinedMeter(StepMeter(), packages), strategy)
    assert meter.max_power_w == 10 + 10 + 120
    meter.begin()
    strategy.barrier()
    if rank == 0:
        FakePowercap(powercap).spend("intel-rapl:0", 10)
    strategy.barrier()
    spent = meter.spent()
    assert spent.energy_j == pytest.approx(6 + 6 + 10)
    assert meter.metrics(spent)["zeus/gpu_energy_j"] == pytest.approx(12)
    assert meter.metrics(spent)["zeus/cpu_energy_j"] == pytest.approx(10)
    meter.resume_from(Reading(100.0, 1.0, 40.0))
    assert meter.spent().cpu_energy_j == pytest.approx(50)
    mixed = StepMeter() if rank else CombinedMeter(StepMeter(), packages)
    with pytest.raises(ZeusConfigError, match="the ranks' devices or meters differ"):
        RunMeter(mixed, strategy)
    packages.close()


def one_rank(rank: int, folder: Path) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    environment = LightningEnvironment()
    environment.set_global_rank(rank)
    environment.set_world_size(WORLD_SIZE)
    devices = [torch.device("cpu")] * WORLD_SIZE
    strategy = DDPStrategy(parallel_devices=devices, cluster_environment=environment)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=WORLD_SIZE
    )
    try:
        check_meters(strategy, rank, folder / "powercap")
        check_combined_meter(strategy, rank, folder / "powercap")
    finally:
        torch.distributed.destroy_process_group()


def test_a_meter_is_closed_where_another_ranks_fails_and_packages_count_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "powercap").mkdir()
    FakePowercap(tmp_path / "powercap").add_package(0)
    torch.multiprocessing.start_processes(
        one_rank, (tmp_path,), nprocs=WORLD_SIZE, start_method="forkserver"
    )
