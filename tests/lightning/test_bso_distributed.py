"""Two real ranks (`ddp`, gloo): they proceed together or raise together, and nobody waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import outcomes
from service_process import ServiceProcess, free_port

SCRIPT = Path(__file__).with_name("two_ranks.py")
DEADLINE_S = 60
Ranks = list[dict[str, Any]]


def two_ranks(folder: Path, **scenarios: str) -> int:
    """Run the scenarios on two ranks; a hang is a failure."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), *(f"{k}={v}" for k, v in scenarios.items())],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MASTER_PORT": str(free_port()),
        },
        start_new_session=True,
    )
    try:
        return process.wait(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        raise


@pytest.fixture(scope="module")
def own_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServiceProcess(tmp_path_factory.mktemp("distributed")) as process:
        yield process.url


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, own_url: str) -> Callable[[str], Ranks]:
    """What both ranks saw of a scenario; all of them run once, in one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    names = ("converges", "fails", "uneven", "meter-closed", "meter-at-start", "meter-later")
    scenarios = dict.fromkeys(names, own_url)
    status = two_ranks(folder, nobody=f"http://127.0.0.1:{free_port()}", **scenarios)
    assert status == 0
    return lambda name: [json.loads((folder / f"{name}-{r}.json").read_text()) for r in (0, 1)]


def test_both_ranks_train_one_trial_with_their_share_and_stop_together(
    seen: Callable[[str], Ranks], own_url: str
) -> None:
    ranks = seen("converges")
    assert outcomes(own_url, "converges") == ["converged"]
    for rank in ranks:
        assert rank["error"] is None
        assert rank["trial"] == ranks[0]["trial"]
        assert rank["trial"]["batch_size"] == 16
        assert rank["batch_lengths"] == [8]
        assert rank["steps"] == 3 * 64 / 16
        assert rank["outcome"] == "converged"


def test_energy_and_power_are_summed_over_ranks_and_time_is_not(
    seen: Callable[[str], Ranks],
) -> None:
    for rank in seen("converges"):
        assert rank["job"]["max_power_w"] == 20.0
        assert rank["job"]["num_devices"] == 2
        assert rank["report"] == {
            "sequence": 3,
            "epoch": 3,
            "time_s": 6.0,
            "energy_j": 2 * 18.0,
            "metric": 0.9,
        }


def test_both_ranks_raise_when_the_batch_size_is_given_up(
    seen: Callable[[str], Ranks], own_url: str
) -> None:
    ranks = seen("fails")
    assert ranks[0]["error"] == ranks[1]["error"]
    assert ranks[0]["error"][0] == "ZeusTrialFailed"
    assert outcomes(own_url, "fails") == ["not_converged"]


def test_both_ranks_raise_when_nobody_answers(seen: Callable[[str], Ranks]) -> None:
    ranks = seen("nobody")
    assert ranks[0]["error"] == ranks[1]["error"]
    assert ranks[0]["error"][0] == "ZeusServiceUnavailable"
    assert ranks[0]["steps"] == ranks[1]["steps"] == 0


def test_batch_sizes_the_ranks_cannot_share_are_refused_all_at_once(
    seen: Callable[[str], Ranks], own_url: str
) -> None:
    for rank in seen("uneven"):
        assert rank["error"][0] == "ZeusConfigError"
        assert "batch sizes [17, 19] do not divide by 2" in rank["error"][1]
    assert outcomes(own_url, "uneven") == []


@pytest.mark.parametrize(
    ("scenario", "message", "trials"),
    [
        ("meter-closed", "GPU 1 cannot be opened", []),
        ("meter-at-start", "GPU 1 is lost", ["withdrawn"]),
    ],
)
def test_an_error_of_one_rank_at_the_start_is_raised_on_both(
    seen: Callable[[str], Ranks], own_url: str, scenario: str, message: str, trials: list[str]
) -> None:
    for rank in seen(scenario):
        assert rank["error"] == ["ZeusMeterError", message]
        assert rank["steps"] == 0
    assert outcomes(own_url, scenario) == trials


def test_a_meter_lost_on_one_rank_later_stops_neither(
    seen: Callable[[str], Ranks], own_url: str
) -> None:
    for rank in seen("meter-later"):
        assert rank["error"] is None
        assert rank["steps"] == 5 * 4
        assert rank["outcome"] == "errored"
    assert outcomes(own_url, "meter-later") == ["errored"]


def test_the_rank_that_runs_out_of_memory_says_so_itself(tmp_path: Path, own_url: str) -> None:
    assert two_ranks(tmp_path, memory=own_url) != 0
    assert outcomes(own_url, "memory") == ["out_of_memory"]
