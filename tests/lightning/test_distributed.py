"""Ranks (gloo) that a Trainer starts: they proceed or raise together, and none hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from calls import assert_one_call_of_a_second
from fake_nvml import FakeDriver
from programs import outcomes, trials
from proxy import (
    Proxy,
    after_a_while,
    dies_after_one_report,
    falls_silent_after_one_report,
    never,
    refuses,
)
from ranks import run_ranks, seen
from service_process import ServiceProcess, free_port

from zeus_lightning.meters.cpu_estimate import WATTS_PER_CORE, CpuEstimateMeter

Rank = dict[str, Any]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")

WHEREVER = ("converges", "retries", "given-up", "bug", "memory-1")
"""The last one breaks the ranks' connection."""
LAUNCHED = ("converges", "given-up")
"""Once launched, ranks raise errors and train again as under plain `ddp`."""
ON_TWO_NODES = ("converges",)
"""An error on one of them: `recur/test_exec.py`."""
SPAWNED = ("retries",)
"""Each fit under `ddp_spawn` imports torch anew; errors pass to the parent as under `ddp_fork`."""
AT_THE_SERVICE = (
    "learns", "meter-at-start", "meter-gpus", "meter-later", "meter-models", "meter-node",
    "meter-odd", "meter-shared-gpu", "meter-unopened", "out-of-time", "passes", "per-device",
    "percent", "resumes", "retries", "sharded", "shards",
)  # fmt: skip
MEASURED = ("energy-combined", "energy-two-nodes", "energy-error")
"""By `ZeusEnergyCallback`, in the same processes."""


@dataclass(frozen=True)
class Run:
    """Scenarios that have run on some ranks."""

    url: str
    folder: Path
    world: int
    writers: int

    def seen(self, scenario: str) -> list[Rank]:
        ranks = seen(self.folder, scenario)
        assert [rank["rank"] for rank in ranks] == list(range(self.writers))
        return ranks


# What is run, how the ranks are started, how many there are, and how many processes write what they
# saw. Beside plain `ddp`: that one's processes run all the other scenarios too.
LAUNCHERS: dict[str, tuple[tuple[str, ...], dict[str, Any], int, int]] = {
    "ddp_spawn": (SPAWNED, {"strategy": "ddp_spawn"}, 2, 1),
    "ddp_fork": (WHEREVER, {"strategy": "ddp_fork"}, 2, 1),
    "torchrun": (LAUNCHED, {"launcher": TORCHRUN}, 2, 2),
    "two-nodes": (ON_TWO_NODES, {"nodes": 2}, 4, 4),
}


def where(scenario: str) -> pytest.MarkDecorator:
    """Each way in which ranks are started that runs a scenario."""
    names = [name for name, (scenarios, *_) in LAUNCHERS.items() if scenario in scenarios]
    return pytest.mark.parametrize("run", ["ddp", *names], indirect=True)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The scenarios on ranks started in each way; all of them once, in the same processes."""
    if request.param == "ddp":
        yield request.getfixturevalue("decided")
        return
    folder = tmp_path_factory.mktemp(request.param)
    scenarios, arguments, world, writers = LAUNCHERS[request.param]
    with ServiceProcess(folder) as service:
        assert run_ranks(folder, dict.fromkeys(scenarios, service.url), **arguments) == 0
        yield Run(service.url, folder, world, writers)


@where("converges")
def test_all_ranks_train_one_trial_with_their_share_are_summed_and_stop_together(run: Run) -> None:
    (trial,) = trials(run.url, "converges")
    assert trial["outcome"] == "converged"
    hardware = trial["hardware"]
    assert (hardware["max_power_w"], hardware["num_devices"]) == (run.world * 10, run.world)
    ranks = run.seen("converges")
    for rank in ranks:
        assert rank["error"] is None
        assert rank["trial"] == ranks[0]["trial"]
        assert rank["trial"]["batch_size"] == 8 * run.world
        assert rank["outcome"] == "converged"
        if run.writers == run.world:
            assert rank["batch_lengths"] == [8]
            assert rank["steps"] == 3 * 64 / (8 * run.world)
        assert rank["report"] | {"host_load": None} == {
            "host_load": None,
            "sequence": 3,
            "epoch": 3,
            "time_s": 6.0,  # of one rank
            "energy_j": run.world * 18.0,
            "metric": 0.9,
            "power_limit_w": None,
            "default_power_limit_w": None,
        }
        assert rank["cost"] == trial["cost"]


@where("given-up")
def test_the_cpu_seconds_of_all_ranks_count_once_whoever_started_whom(run: Run) -> None:
    cpu_s = seen(run.folder / "cpu", "given-up")
    assert len(cpu_s) == run.world
    for rank in run.seen("given-up"):
        # more than the ranks' own seconds: what the callbacks after this one's reading take
        assert rank["report"]["energy_j"] == pytest.approx(sum(cpu_s) * WATTS_PER_CORE, rel=0.25)
    hardware = trials(run.url, "given-up")[0]["hardware"]
    assert hardware["max_power_w"] == CpuEstimateMeter().max_power_w
    assert hardware["estimated"]


@where("retries")
def test_fit_tries_again_after_a_failed_batch_size(run: Run) -> None:
    failed, converged = trials(run.url, "retries")
    assert (failed["outcome"], converged["outcome"]) == ("not_converged", "converged")
    assert converged["hardware"]["num_devices"] == run.world
    assert converged["energy_j"] == run.world * 6.0


@where("given-up")
def test_all_ranks_raise_when_the_batch_size_has_failed(run: Run) -> None:
    ranks = run.seen("given-up")
    assert outcomes(run.url, "given-up") == ["not_converged"]
    for rank in ranks:
        assert rank["error"] == ranks[0]["error"]
        assert rank["error"][0] in ("ZeusTrialFailed", "ProcessRaisedException")
        assert "ended as not_converged: the target of " in rank["error"][1]
        assert rank["outcome"] == "not_converged"


@where("bug")
def test_an_error_of_the_program_ends_the_trial_and_comes_through(run: Run) -> None:
    wrapped = run.writers == 1  # by torch's launcher, with the text of the error
    for rank in run.seen("bug"):
        assert rank["error"][0] == ("ProcessRaisedException" if wrapped else "ZeroDivisionError")
        assert rank["error"][1].rstrip().endswith("ZeroDivisionError: mine" if wrapped else "mine")
        assert rank["outcome"] == "errored"
    assert outcomes(run.url, "bug") == ["errored"]


@where("memory-1")
def test_the_rank_that_runs_out_of_memory_reports_it_itself(run: Run) -> None:
    (trial,) = trials(run.url, "memory-1")
    assert trial["outcome"] == "out_of_memory"
    assert "OutOfMemoryError: CUDA out of memory." in trial["reason"]
    it = run.seen("memory-1")[-1 if run.writers == 1 else 1]
    assert it["error"][1].rstrip().endswith("CUDA out of memory.")


@pytest.fixture(scope="module")
def decided(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two ranks, and services, meters and programs of all kinds, also ones that cannot work.

    Their host has two GPUs of one model, and one of another.
    """
    folder = tmp_path_factory.mktemp("decided")
    driver = FakeDriver(fake_nvml_library, folder / "driver", gpu_count=2)
    driver.add_gpu("Fake A100")
    driver.gpus[0].set_load(0.2)  # 100 W
    driver.gpus[1].set_load(1)  # 300 W
    with ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(folder))
        proxies = {
            "converges@slow": Proxy(service.url, instead=after_a_while),
            "converges@silent": Proxy(service.url, instead=never),
            "bug@silent": Proxy(service.url, instead=falls_silent_after_one_report()),
            "fails@dying": Proxy(service.url, instead=dies_after_one_report()),
            "fails@refused": Proxy(service.url, instead=refuses("report", 409, "conflict")),
        }
        scenarios = {name: stack.enter_context(proxy).url for name, proxy in proxies.items()}
        nobody = f"http://127.0.0.1:{free_port()}"
        scenarios |= {"nobody": nobody, "without": nobody}
        scenarios |= dict.fromkeys((*MEASURED, *AT_THE_SERVICE, *WHEREVER), service.url)
        assert run_ranks(folder, scenarios, env=driver.variables) == 0
        yield Run(service.url, folder, 2, 2)


def test_a_validation_end_is_one_reduction_and_one_broadcast(decided: Run) -> None:
    for scenario, validations in {"converges@slow": 3, "fails@dying": 5, "per-device": 3}.items():
        for rank in decided.seen(scenario):
            assert rank["strategy_calls"] == [["reduce", "broadcast"]] * validations, scenario


def test_ranks_are_not_warned_of_what_the_callback_does(decided: Run) -> None:
    paths = list(decided.folder.glob("*.json"))
    warned = [text for path in paths for text in json.loads(path.read_text())["warnings"]]
    assert len(warned) > len(paths)  # Lightning's own
    assert [text for text in warned if "zeus/" in text] == []


@pytest.mark.parametrize(
    ("scenario", "error", "message"),
    [
        ("nobody", "ZeusServiceUnavailable", "Connection refused"),
        ("converges@silent", "ZeusServiceUnavailable", "did not answer"),
        ("shards", "ZeusConfigError", "has no full batch of 8"),
        # No error of ours: where is it from?
        ("meter-odd", "ZeusError", "in max_power_w)"),
        ("meter-at-start", "ZeusMeterError", "GPU 1 is lost"),
        ("meter-unopened", "ZeusMeterError", "cannot find GPU 9"),
    ],
)
def test_an_error_at_the_start_is_raised_on_both_before_any_step(
    decided: Run, scenario: str, error: str, message: str
) -> None:
    ranks = decided.seen(scenario)
    for rank in ranks:
        assert rank["error"] == ranks[0]["error"]
        assert rank["error"][0] == error
        assert message in rank["error"][1]
        assert rank["steps"] == 0
        assert not rank.get("nvml_is_open")  # the meter that could be opened was closed
    left = {None} & set(outcomes(decided.url, scenario.replace("@", "-")))
    assert not left  # no trial stays open


@pytest.mark.parametrize(
    ("scenario", "outcome"),
    [("fails@dying", "lost"), ("fails@refused", "errored"), ("meter-later", "errored")],
)
def test_a_service_or_a_meter_that_fails_in_mid_run_stops_neither(
    decided: Run, scenario: str, outcome: str
) -> None:
    for rank in decided.seen(scenario):
        assert rank["error"] is None
        assert rank["steps"] == 5 * 4
        assert rank["outcome"] == outcome


@pytest.mark.parametrize(
    ("scenario", "outcome", "error"),
    [
        ("converges@slow", "converged", []),
        ("meter-node", "converged", []),
        # the program has made an error of the warning of a target that is reached at once
        ("percent", "withdrawn", ["ZeusError"]),
        ("out-of-time", "interrupted", []),
    ],
)
def test_how_a_run_ends_is_the_same_on_both(
    decided: Run, scenario: str, outcome: str, error: list[str]
) -> None:
    assert outcomes(decided.url, scenario.replace("@", "-")) == [outcome]
    for rank in decided.seen(scenario):
        assert (rank["error"] or [])[:1] == error
        assert rank["outcome"] == outcome
        if scenario == "percent":
            assert "UserWarning: zeus: the first validation" in rank["error"][1]
        if scenario == "meter-node":  # which both count
            assert rank["report"]["energy_j"] == 6


def test_after_an_error_a_silent_service_delays_neither(decided: Run) -> None:
    for rank in decided.seen("bug@silent"):
        assert rank["error"] == ["ZeroDivisionError", "mine"]
        assert_one_call_of_a_second(**rank["calls"])
    assert outcomes(decided.url, "bug-silent") == [None]  # until its lease ends


def test_the_programs_batch_size_is_trained_with_per_device_and_without_a_service(
    decided: Run,
) -> None:
    for rank in decided.seen("per-device"):
        assert rank["trial"]["batch_size"] == 8
        assert rank["job"]["batch_sizes"] == [1, 2, 4, 8, 16, 32, 64]
        assert rank["batch_lengths"] == [8]
    for rank in decided.seen("without"):
        assert rank["error"] is None
        assert rank["trial"] is None
        assert rank["batch_lengths"] == [8]


def test_each_rank_trains_its_share_of_a_dataloader_that_is_passed_to_fit(decided: Run) -> None:
    for rank in decided.seen("passes"):
        assert (rank["error"], rank["outcome"]) == (None, "converged")
        assert rank["trial"]["batch_size"] == 8  # of both, from a loader that has 8 for each
        assert rank["batch_lengths"] == [4]
        assert rank["steps"] == 3 * 64 / 8  # Lightning's sampler gives each a half


def test_both_ranks_train_baselines_to_their_end_and_stop_at_the_learned_target(
    decided: Run,
) -> None:
    for rank in decided.seen("learns"):
        seen = [(run["outcome"], run["report"]["epoch"], run["error"]) for run in rank["runs"]]
        assert seen == [("completed", 5, None), ("converged", 5, None), ("converged", 2, None)]
        assert [run["job"]["target_metric"] for run in rank["runs"]] == [None, None, 0.9]
    assert outcomes(decided.url, "learns") == ["converged"] * 3


def test_both_ranks_resume_the_trial_of_a_checkpoint(decided: Run) -> None:
    for rank in decided.seen("resumes"):
        assert rank["broken"]["error"] == ["ZeroDivisionError", "mine"]
        assert rank["error"] is None
        assert rank["trial"] == rank["broken"]["trial"]
        assert rank["outcome"] == "converged"
        assert rank["batch_lengths"] == [8]
        report, before = rank["report"], rank["broken"]["report"]
        assert (report["sequence"], report["epoch"]) == (2, 2)
        # the checkpoint's own reading is a step of this meter too
        assert (report["energy_j"], report["time_s"]) == (2 * 6 * 3, 2 * 3)
        assert (before["energy_j"], before["time_s"]) == (2 * 6, 2)
    assert outcomes(decided.url, "resumes") == ["converged", "withdrawn"]


def test_a_sharded_run_is_measured_resumed_from_its_shards_and_followed_by_another(
    decided: Run,
) -> None:
    first, withdrawn, third = trials(decided.url, "sharded")
    ended = [each["outcome"] for each in (first, withdrawn, third)]
    assert ended == ["converged", "withdrawn", "converged"]
    assert first["epoch"] == 3
    assert first["energy_j"] == third["energy_j"]  # what was spent before the error counts
    for rank in decided.seen("sharded"):
        failed, resumed, other = rank["runs"]
        assert failed["is_sharded"]
        assert failed["error"] == ["ZeroDivisionError", "mine"]
        numbers = [run["trial"]["trial_number"] for run in (failed, resumed, other)]
        assert numbers == [1, 1, 3]
        assert failed["batch_lengths"] == resumed["batch_lengths"] == [first["batch_size"] // 2]
        assert other["batch_lengths"] == [third["batch_size"] // 2]
        assert resumed["cost"] == first["cost"]


@pytest.mark.parametrize(
    ("scenario", "watts", "max_power_w"), [("meter-gpus", 400, 600), ("meter-shared-gpu", 100, 300)]
)
def test_each_rank_reads_its_own_gpu_and_one_that_they_share_once(
    decided: Run, scenario: str, watts: float, max_power_w: float
) -> None:
    for rank in decided.seen(scenario):
        report = rank["report"]
        assert report["energy_j"] / report["time_s"] == pytest.approx(watts, rel=0.05)
    (trial,) = trials(decided.url, scenario)
    hardware = trial["hardware"]
    assert (hardware["max_power_w"], hardware["device_model"]) == (max_power_w, "Fake H100")


def test_different_gpus_are_an_error_on_all_ranks_that_lists_them(decided: Run) -> None:
    for rank in decided.seen("meter-models"):
        assert rank["error"][0] == "ZeusConfigError"
        assert "Fake H100 (nvml) on rank 0; Fake A100 (nvml) on rank 1" in rank["error"][1]


@pytest.mark.parametrize(
    ("meter", "meters"),
    [
        ("two-nodes", 2),
        ("combined", 3),  # each rank's GPU, and the package of their node
    ],
)
def test_without_a_job_ranks_are_summed_and_a_device_that_a_node_shares_counts_once(
    decided: Run, meter: str, meters: int
) -> None:
    first, second = decided.seen(f"energy-{meter}")
    # readings after the first: validation and epoch of two epochs, and the fit's end
    assert first["spent"] == second["spent"] == [5 * 6.0 * meters, 5 * 2.0]
    energy = {"zeus/energy_j": 24.0 * meters, "zeus/time_s": 8.0, "zeus/power_w": 3.0 * meters}
    if meter == "combined":
        energy |= {"zeus/gpu_energy_j": 48.0, "zeus/cpu_energy_j": 24.0}
    for rank in (first, second):
        assert {key: rank["logged"][key] for key in energy} == energy
        assert rank["tested"][0]["zeus/energy_j"] == 6.0 * meters
    assert [line.partition(",")[0] for line in first["lines"]] == [
        f"zeus: the fit used {30 * meters}.00 J in 10.00 s",
        f"zeus: the test used {12 * meters}.00 J in 4.00 s",
    ]
    assert second["lines"] == []


def test_without_a_job_an_error_prints_what_all_ranks_have_used(decided: Run) -> None:
    first, second = decided.seen("energy-error")
    assert first["error"] == second["error"] == "mine"
    (line,) = first["lines"]
    assert line.startswith("zeus: the fit, until ZeroDivisionError ended it, used 12.00 J in 2")
