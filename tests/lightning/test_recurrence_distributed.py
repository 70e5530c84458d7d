"""`Recurrence` and `PowerLimit` on two ranks that Fabric starts: both proceed, or both raise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeDriver
from programs import outcomes, trials
from ranks import run_ranks, seen
from service_process import ServiceProcess

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
        ("early", "ZeusConfigError", "rank 0 reports, rank 1 leaves the block", ["withdrawn"]),
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
