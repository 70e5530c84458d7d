"""Ranks (gloo) with GPUs of their own, with one that they share, and with unlike ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeDriver
from programs import trials
from ranks import run_ranks, seen
from service_process import ServiceProcess

Rank = dict[str, Any]


@pytest.fixture(scope="module")
def with_gpus(
    fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory, service: ServiceProcess
) -> Callable[[str], list[Rank]]:
    """Two ranks on a host with two GPUs of one model, and one of another."""
    folder = tmp_path_factory.mktemp("gpus")
    driver = FakeDriver(fake_nvml_library, folder / "driver", gpu_count=2)
    driver.add_gpu("Fake A100")
    driver.gpus[0].set_load(0.2)  # 100 W
    driver.gpus[1].set_load(1)  # 300 W
    scenarios = dict.fromkeys(("meter-gpus", "meter-shared-gpu", "meter-models"), service.url)
    assert run_ranks(folder, scenarios, env=driver.variables) == 0

    def seen_by_ranks(scenario: str) -> list[Rank]:
        hardware = [each["hardware"] for each in trials(service.url, scenario)]
        return [{**rank, "hardware": hardware} for rank in seen(folder, scenario)]

    return seen_by_ranks


@pytest.mark.parametrize(
    ("scenario", "watts", "max_power_w"), [("meter-gpus", 400, 600), ("meter-shared-gpu", 100, 300)]
)
def test_each_rank_reads_its_own_gpu_and_one_that_they_share_once(
    with_gpus: Callable[[str], list[Rank]], scenario: str, watts: float, max_power_w: float
) -> None:
    ranks = with_gpus(scenario)
    assert len(ranks) == 2
    for rank in ranks:
        report = rank["report"]
        assert report["energy_j"] / report["time_s"] == pytest.approx(watts, rel=0.05)
    (hardware,) = ranks[0]["hardware"]
    assert (hardware["max_power_w"], hardware["device_model"]) == (max_power_w, "Fake H100")


def test_different_gpus_are_an_error_on_all_ranks_that_lists_them(
    with_gpus: Callable[[str], list[Rank]],
) -> None:
    ranks = with_gpus("meter-models")
    assert len(ranks) == 2
    for rank in ranks:
        assert rank["error"][0] == "ZeusConfigError"
        assert "Fake H100 by nvml on rank 0; Fake A100 by nvml on rank 1" in rank["error"][1]
