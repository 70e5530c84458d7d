"""What one rank knows or meets, all ranks get; over real processes that gloo connects."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_powercap import FakePowercap
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from programs import StepMeter

from zeus_lightning.errors import ZeusConfigError, ZeusError, ZeusJobConflict
from zeus_lightning.meters import Reading, rapl
from zeus_lightning.meters.combined import CombinedMeter
from zeus_lightning.meters.rapl import RaplMeter
from zeus_lightning.run.ranks import (
    gather,
    on_every_rank,
    on_rank_zero,
    rank_of,
    sum_over_ranks,
)
from zeus_lightning.run.run_meter import RunMeter

WORLD_SIZE = 2


def fails_on(rank: int, strategy: Strategy, error: Exception) -> int:
    """Raises on one rank, and returns the rank on the others."""
    if rank_of(strategy) == rank:
        raise error
    return rank_of(strategy)


def error_of(call: Callable[[], object]) -> tuple[type[ZeusError], str, dict[str, Any]]:
    """The error that a call raises."""
    with pytest.raises(ZeusError) as error:
        call()
    return type(error.value), error.value.message, error.value.fields


def check_all(strategy: Strategy, rank: int) -> None:
    """Everything that ranks do together."""
    assert gather(strategy, {"rank": rank, "text": "é" * rank}) == [
        {"rank": each, "text": "é" * each} for each in range(WORLD_SIZE)
    ]
    assert sum_over_ranks(strategy, 0.1 + rank) == pytest.approx(1.2, abs=1e-15)
    assert math.isnan(sum_over_ranks(strategy, math.nan if rank == 1 else 1.0))
    assert on_rank_zero(strategy, lambda: (rank, "answer")) == (0, "answer")
    assert on_every_rank(strategy, lambda: rank) == rank

    conflict = ZeusJobConflict("it differs", {"differences": ["seed"]})
    seen = error_of(lambda: on_rank_zero(strategy, lambda: fails_on(0, strategy, conflict)))
    assert seen == (ZeusJobConflict, "it differs", {"differences": ["seed"]})
    wrong = ZeusConfigError("wrong here")
    seen = error_of(lambda: on_every_rank(strategy, lambda: fails_on(1, strategy, wrong)))
    assert seen == (ZeusConfigError, "wrong here", {})
    kind, message, _ = error_of(
        lambda: on_every_rank(strategy, lambda: fails_on(1, strategy, KeyError("mine")))
    )
    assert kind is ZeusError
    assert message.startswith("KeyError: 'mine' (")
    assert message.endswith("in fails_on)")
    assert gather(strategy, rank) == [0, 1]  # an error leaves nothing behind


def check_meters(strategy: Strategy, rank: int, powercap: Path) -> None:
    """A meter that only the other rank cannot open is closed on this one."""
    rapl.POWERCAP = powercap
    kind, message, _ = error_of(lambda: RunMeter(("rapl", "perpetual")[rank], strategy))
    assert kind is ZeusConfigError
    assert "'perpetual'" in message
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
    assert meter.breakdown(spent) == pytest.approx(
        {"zeus/gpu_energy_j": 12.0, "zeus/cpu_energy_j": 10.0}
    )
    meter.resume_from(Reading(100.0, 1.0, 40.0))
    assert meter.spent().cpu_energy_j == pytest.approx(50)
    mixed = StepMeter() if rank else CombinedMeter(StepMeter(), packages)
    kind, message, _ = error_of(lambda: RunMeter(mixed, strategy))
    assert kind is ZeusConfigError
    assert "the ranks measure different devices" in message
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
        check_all(strategy, rank)
        check_meters(strategy, rank, folder / "powercap")
        check_combined_meter(strategy, rank, folder / "powercap")
    finally:
        torch.distributed.destroy_process_group()


def test_ranks_share_values_and_errors(tmp_path: Path) -> None:
    (tmp_path / "powercap").mkdir()
    FakePowercap(tmp_path / "powercap").add_package(0)
    torch.multiprocessing.start_processes(
        one_rank, (tmp_path,), nprocs=WORLD_SIZE, start_method="forkserver"
    )


def test_one_process_needs_no_process_group() -> None:
    strategy = SingleDeviceStrategy(torch.device("cpu"))
    assert gather(strategy, (1, "a")) == [(1, "a")]
    assert sum_over_ranks(strategy, 1.5) == 1.5
    assert rank_of(strategy) == 0
    with pytest.raises(ZeroDivisionError):  # as it is
        on_every_rank(strategy, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on_rank_zero(strategy, lambda: 1 / 0)
