"""`zeus-service simulate` as a person runs it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from waiting import wait_until
from zeus_service.bandit.registry import POLICIES
from zeus_service.cli import main


def letters(target: float = 0.5, max_epochs: int = 20, default: int = 16) -> list[str]:
    """Options that describe the tiny recorded workload."""
    return ["--recipe", "letters", "net", "sgd", str(target), str(max_epochs), str(default)]


LETTERS = letters()


def simulate(*arguments: str | Path) -> Result:
    """Run the command in this process, in a terminal of 120 columns."""
    runner = CliRunner(env={"COLUMNS": "120"})
    return runner.invoke(main, ["simulate", *map(str, arguments)], catch_exceptions=False)


def the_error(*arguments: str | Path) -> str:
    """The one message that an error ends with."""
    result = simulate(*arguments)
    assert result.exit_code != 0
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("Error: ")
    assert len(lines) == 1 or lines[0].startswith("Usage: ")
    return lines[-1]


def row_of(policy: str, result: Result) -> list[str]:
    """What the only row of a policy says."""
    lines = [line.split() for line in result.stdout.splitlines()]
    (row,) = [line for line in lines if line and line[0] == policy]
    return row[1:]


def test_a_newcomer_needs_no_files() -> None:
    command = Path(sys.executable).parent / "zeus-service"
    result = subprocess.run(
        [command, "simulate", "--seeds=2", "--recurrences=10"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines if line[1:] == ["simulated"]] == [
        "synthetic-0",
        "synthetic-1",
        "synthetic-2",
    ]
    assert [line[0] for line in lines if line and line[0] in POLICIES] == [*POLICIES] * 3
    assert result.stderr == ""
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_table_says_what_each_policy_spends(traces: Path) -> None:
    result = simulate(f"--traces={traces}", *LETTERS, "--policy=zeus", "--seeds=4")
    cost, early, energy, time, wasted, final, share = row_of("zeus", result)
    assert 1.0 < float(cost.split("±")[0]) < float(early) * 1.1
    assert 0 < float(energy) < 1
    assert float(time) > 0
    assert float(wasted) >= 1  # 32 is too slow to learn
    assert final == "8"
    assert 50 < int(share.rstrip("%")) <= 100


def test_the_replays_are_written_as_csv(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "replays.csv"
    simulate(f"--traces={traces}", *LETTERS, "--policy=zeus", "--seeds=4", f"--csv={path}")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        assert (row["workload"], row["gpu"], row["policy"]) == ("letters", "tiny", "zeus")
        assert row["recurrences"] == str(2 * 3 * 2)
        assert 1.0 < float(row["cost_j"]) / float(row["oracle_cost_j"]) < 2.0
    assert len({row["cost_j"] for row in rows}) > 1


def test_a_learned_target_costs_baselines(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    arguments = ("--synthetic=7", "--seeds=2", "--policy=default", f"--csv={table}")
    energies = []
    for more in ([], ["--learn-target"]):
        simulate(*arguments, *more)
        with table.open(newline="") as file:
            energies.append([float(row["energy_j"]) for row in csv.DictReader(file)])
    assert all(learned > given for given, learned in zip(*energies, strict=True))


def test_drift_is_replayed_with_a_window() -> None:
    def cost(*arguments: str) -> float:
        result = simulate("--drifting=0", "--seeds=5", "--policy=zeus", *arguments)
        return float(row_of("zeus", result)[0].split("±")[0])

    assert cost("--window-size=10") < cost("--window-size=0")


def test_a_policy_that_gives_up_leaves_the_others_their_results(traces: Path) -> None:
    never = letters(max_epochs=18, default=32)
    result = simulate(f"--traces={traces}", *never, "--seeds=2")
    assert result.exit_code == 0
    assert row_of("default", result)[:2] == ["gave", "up"]
    assert float(row_of("information_directed", result)[0].split("±")[0]) > 1
    assert "gave up and are left out: 2 of 2" in " ".join(result.stdout.split())


def test_the_beta_of_the_command_is_that_of_the_job(traces: Path) -> None:
    arguments = (f"--traces={traces}", *LETTERS, "--policy=zeus", "--seeds=4")
    stopped, never = (simulate(*arguments, f"--beta={beta}") for beta in ("1.1", "1e9"))
    assert row_of("zeus", never) != row_of("zeus", stopped)


def test_a_default_that_was_not_measured_is_replaced_with_a_printed_line(traces: Path) -> None:
    text = "letters tiny: no power data for the default batch size 64; using "
    result = simulate(f"--traces={traces}", *letters(default=64), "--seeds=1")
    assert result.stderr.startswith(text)


def test_a_file_that_cannot_be_written_is_told_before_the_long_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("zeus_service.simulation.cli.run_all")
    for path in ("/proc/table", "/nowhere/table"):
        assert f"'{path}': No such file or directory" in the_error(f"--csv={path}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu=v100"], "recorded runs need a directory; pass it with --traces"),
        (LETTERS, "recorded runs need a directory; pass it with --traces"),
        (["--seeds=0"], "'--seeds': 0 is not in the range"),
        (["--eta=1.5"], "eta_knob: Input should be less than or equal to 1 (1.5)"),
        (["--beta=0"], "beta_knob: Input should be greater than 0 (0.0)"),
        (["--dask=127.0.0.1"], "no Dask scheduler at '127.0.0.1': missing port number"),
        (["--dask=127.0.0.1:1"], "no Dask scheduler at '127.0.0.1:1': Timed out"),
        (["--policy=best"], "'--policy': 'best' is not one of"),
        (["--traces=.", "--workload=best"], "'--workload': 'best' is not one of"),
        (["--traces=nowhere"], "nowhere: no file summary_power_GPU.csv here"),
    ],
)
def test_a_wrong_argument_is_one_message(arguments: list[str], message: str) -> None:
    assert message in the_error(*arguments)


def test_two_dask_workers_print_what_one_process_prints() -> None:
    from distributed import Client, LocalCluster, get_task_stream

    arguments = ("--synthetic=7", "--seeds=4", "--recurrences=20")
    local = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    )
    with local as cluster, Client(cluster, set_as_default=False) as client:
        pids = client.run(os.getpid)
        with get_task_stream(client) as stream:
            result = simulate(*arguments, f"--dask={cluster.scheduler_address}")
    worked = {pids[task["worker"]] for task in stream.data if task["key"].startswith("run-")}
    assert len(worked) == 2
    assert os.getpid() not in worked
    assert result.stdout == simulate(*arguments).stdout
    wait_until(lambda: not any(map(psutil.pid_exists, pids.values())))


def test_without_dask_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    error = the_error("--dask=127.0.0.1:8786")
    assert error.endswith("--dask needs Dask: pip install './service[dask]'")


def test_recorded_and_synthetic_workloads_are_compared_in_one_table(traces: Path) -> None:
    result = simulate(f"--traces={traces}", *LETTERS, "--synthetic=3", "--seeds=1")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["letters", "tiny"] in lines
    assert ["synthetic-3", "simulated"] in lines


def test_a_directory_without_the_papers_workloads_says_how_to_name_another(traces: Path) -> None:
    assert "describe yours with --recipe" in the_error(f"--traces={traces}")


def test_a_table_is_overwritten_but_not_by_a_command_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("an older table\n")
    arguments = ("--seeds=1", "--recurrences=2", f"--csv={path}")
    the_error(*arguments, "--eta=2")
    assert path.read_text() == "an older table\n"
    simulate(*arguments)
    assert path.read_text().startswith("workload,gpu,policy,")
