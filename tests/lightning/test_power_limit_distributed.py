"""Two real ranks (`ddp`, gloo), each with a GPU: one limit, set in the same batch on both."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import ranks
from fake_nvml import FakeDriver

SCRIPT = Path(__file__).with_name("two_gpus.py")
Ranks = list[dict[str, Any]]
SCENARIOS = (
    "whole",
    "known",
    "refused",
    "unusable",
    "changed",
    "slow",
    "ranges",
    "permission",
    "observe",
    "mig",
    "one_gpu",
)


@pytest.fixture(scope="module")
def driver(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """Six GPUs: two alike at 250 W, and ones of another range, without the right, under MIG."""
    driver = FakeDriver(fake_nvml_library, tmp_path_factory.mktemp("driver") / "state")
    driver.add_gpu(max_w=350)
    driver.add_gpu().refuse_limits()
    driver.add_gpu().lack_power_control()
    for gpu in driver.gpus[:2]:
        gpu.limit_mw = 250_000
        gpu.set_load(1)
    return driver


def run(
    driver: FakeDriver,
    folder: Path,
    *scenarios: str,
    strategy: str = "ddp",
) -> Callable[[str], Ranks]:
    """Run scenarios in one pair of processes: and return what ranks saw of each."""
    env = {
        **driver.variables,
        "XDG_STATE_HOME": str(folder / "state"),
        "STRATEGY": strategy,
    }
    assert ranks.run_ranks(folder, dict.fromkeys(scenarios, ""), script=SCRIPT, env=env) == 0
    return lambda name: ranks.seen(folder, name)


@pytest.fixture(scope="module")
def seen(driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ranks]:
    """What both ranks saw of a scenario; all of them run once."""
    return run(driver, tmp_path_factory.mktemp("ranks"), *SCENARIOS)


def test_both_ranks_set_the_same_limits_in_the_same_batches(seen: Callable[[str], Ranks]) -> None:
    first, second = seen("whole")
    assert first["error"] is second["error"] is None
    assert first["limits_w"] == second["limits_w"]
    assert len(first["limits_w"]) == 80
    assert [first["limits_w"][batch] for batch in (0, 10, 79)] == [300, 200, first["limit_w"]]
    assert first["profile"] == second["profile"]


def test_forked_ranks_set_the_same_limits_too(driver: FakeDriver, tmp_path: Path) -> None:
    assert run(driver, tmp_path, "children", strategy="ddp_fork")("children")
    first, second = ranks.seen(tmp_path, "child")
    assert first == second
    assert len(first["limits_w"]) == 80
    assert first["profile"]["num_devices"] == 2
    assert {300, 200} <= set(first["limits_w"])
    assert first["limits_w"][-1] == first["limit_w"]
    assert first["after_w"] == 250


def test_energy_is_summed_time_is_the_slowest_ranks_and_max_power_is_of_all(
    seen: Callable[[str], Ranks],
) -> None:
    for rank in seen("slow"):
        profile = rank["profile"]
        assert (profile["num_devices"], profile["max_power_w"]) == (2, 600)
        assert profile["batch_size"] == 8
        for point in profile["points"]:
            assert point["time_s"] >= 0.02
            power_w = point["energy_j"] / point["time_s"]
            assert power_w == pytest.approx(2 * point["limit_w"], rel=0.2)


def test_the_limits_found_are_restored_on_both(seen: Callable[[str], Ranks]) -> None:
    for name in SCENARIOS:
        for rank in seen(name):
            assert rank["after_w"] == 250


def test_a_profile_known_to_rank_zero_is_applied_by_both_from_the_first_step(
    seen: Callable[[str], Ranks],
) -> None:
    chosen_w = seen("whole")[0]["limit_w"]
    for rank in seen("known"):
        assert set(rank["limits_w"]) == {chosen_w}
        assert not rank["profiled"]


def test_a_profile_that_rank_zero_cannot_read_leaves_both_in_step(
    seen: Callable[[str], Ranks],
) -> None:
    first, second = seen("unusable")
    assert first["error"] is second["error"] is None
    assert first["limits_w"] == second["limits_w"]
    assert len(first["limits_w"]) == 80
    assert any(re.search("ignoring .*broken.json: ", text) for text in first["warnings"])


def test_a_limit_that_one_ranks_gpu_refuses_is_set_by_neither(
    seen: Callable[[str], Ranks],
) -> None:
    first, second = seen("refused")
    for rank in (first, second):
        assert rank["error"] is None
        assert set(rank["limits_w"]) == {250}
        assert rank["limit_w"] is None
    (warned,) = first["warnings"]
    assert "cannot be set on rank 1; training continues" in warned


def test_a_disturbance_on_one_rank_makes_both_measure_again(seen: Callable[[str], Ranks]) -> None:
    first, second = seen("changed")
    differ = [
        batch
        for batch, limits in enumerate(zip(first["limits_w"], second["limits_w"], strict=True))
        if limits[0] != limits[1]
    ]
    assert differ
    assert max(differ) < 16  # until the window's edge
    assert {second["limits_w"][batch] for batch in differ} == {111}
    assert first["profile"] == second["profile"]
    assert first["limit_w"] == second["limit_w"]
    (warned,) = first["warnings"]
    assert "someone else changed a GPU's power limit (rank 1)" in warned
    void_w = int(re.search(r"discarded the measurement at (\d+) W", warned)[1])
    batches = next(len([*same]) for limit, same in groupby(first["limits_w"]) if limit == void_w)
    assert batches >= 2 * (2 + 4)  # warm-up and window, twice
    assert second["warnings"] == []  # only rank zero warns


def test_different_ranges_of_limits_are_an_error_on_both_ranks_that_lists_them(
    seen: Callable[[str], Ranks],
) -> None:
    for rank in seen("ranges"):
        kind, message = rank["error"]
        assert kind == "ZeusConfigError"
        assert "(100 to 300 W on rank 0; 100 to 350 W on rank 1)" in message
        assert rank["limits_w"] == []


def test_a_permission_that_one_rank_lacks_is_an_error_on_both(
    seen: Callable[[str], Ranks],
) -> None:
    for rank in seen("permission"):
        kind, message = rank["error"]
        assert kind == "ZeusPowerError"
        assert message.startswith("rank 1: cannot set a limit")
        assert "CAP_SYS_ADMIN" in message
        assert rank["limits_w"] == []


@pytest.mark.parametrize(
    ("scenario", "instead", "reason"),
    [
        ("mig", "power-limit search disabled", "MIG slices"),
        ("observe", "observing only", "CAP_SYS_ADMIN"),
    ],
)
def test_without_power_control_or_the_permission_on_one_rank_neither_sets_a_limit(
    seen: Callable[[str], Ranks], scenario: str, instead: str, reason: str
) -> None:
    first, second = seen(scenario)
    for rank in (first, second):
        assert rank["error"] is None
        assert rank["limits_w"] == [250] * 80
    (warned,) = first["warnings"]
    assert warned.startswith(f"zeus: {instead}: rank 1: ")
    assert reason in warned
    assert second["warnings"] == []


def test_two_ranks_on_one_gpu_are_an_error_that_names_them(seen: Callable[[str], Ranks]) -> None:
    for rank in seen("one_gpu"):
        kind, message = rank["error"]
        assert kind == "ZeusConfigError"
        assert "ranks 0, 1 train on the same GPU, GPU-" in message
        assert rank["limits_w"] == []
