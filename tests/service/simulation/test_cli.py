"""`zeus-service simulate` as a person runs it."""

from __future__ import annotations

import csv
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from service.simulation import recorded
from zeus_service.bandit.registry import POLICIES
from zeus_service.cli import main

LETTERS = ["--workload=letters/net/sgd", "--target=0.5", "--max-epochs=20"]
LETTERS += ["--default-batch-size=16"]


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
        [command, "simulate", "--synthetic", "--seeds=2", "--recurrences=10"],
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


def test_the_same_command_gives_the_same_table() -> None:
    arguments = ("--synthetic", "--seeds=2", "--recurrences=20")
    assert simulate(*arguments).stdout == simulate(*arguments).stdout


def test_the_table_is_written_as_csv(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    simulate(f"--traces={traces}", *LETTERS, "--policy=zeus", "--seeds=4", f"--csv={path}")
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["workload"], row["gpu"], row["policy"]) == ("letters", "tiny", "zeus")
    assert (row["replays"], row["recurrences"]) == ("4", str(4 * 2 * 3 * 2))
    assert 1.0 < float(row["cost"]) < 2.0
    assert float(row["cost_error"]) > 0


def test_the_figures_are_written(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    simulate("--synthetic", "--workload=synthetic-7", "--seeds=2", f"--plot={path}")
    assert "synthetic-7 on simulated" in path.read_text()


def test_a_recorded_cluster_is_replayed(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.csv.xz"
    rows = [
        f"{group},{start},{start + 50},letters,1.0"
        for group in ("a", "b")
        for start in range(0, 400, 20)
    ]
    header = "group,start_time,end_time,dataset,runtime_ratio"
    path.write_bytes(lzma.compress("\n".join([header, *rows]).encode()))
    table = tmp_path / "table.csv"
    result = simulate(
        f"--traces={traces}",
        *LETTERS,
        "--policy=zeus",
        "--seeds=3",
        f"--cluster={path}",
        f"--csv={table}",
    )
    assert result.exit_code == 0
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["replays"], row["recurrences"]) == ("6", "120")


def test_a_synthetic_cluster_is_replayed() -> None:
    result = simulate(
        "--synthetic", "--workload=synthetic-1", "--cluster=synthetic", "--seeds=1", "--drift"
    )
    assert result.exit_code == 0
    assert "synthetic-1 simulated" in result.stdout


def test_drift_is_replayed_with_a_window() -> None:
    def cost(*arguments: str) -> float:
        result = simulate(
            "--synthetic", "--workload=synthetic-0", "--drift", "--seeds=5", "--policy=zeus",
            *arguments,
        )  # fmt: skip
        return float(row_of("zeus", result)[0].split("±")[0])

    assert cost("--window-size=10") < cost("--window-size=0")


def test_a_policy_that_gives_up_leaves_the_others_their_results(traces: Path) -> None:
    letters = [*LETTERS[:3], "--default-batch-size=32", "--max-epochs=18", "--seeds=2"]
    result = simulate(f"--traces={traces}", *letters)
    assert result.exit_code == 0
    assert row_of("default", result)[:2] == ["gave", "up"]
    assert float(row_of("information_directed", result)[0].split("±")[0]) > 1
    assert "with default: gave up in 2 of 2 replays" in " ".join(result.stdout.split())


def test_without_beta_no_run_is_stopped(traces: Path) -> None:
    arguments = (f"--traces={traces}", *LETTERS, "--policy=zeus", "--seeds=4")
    stopped, never = (simulate(*arguments, f"--beta={beta}") for beta in (1.1, "none"))
    assert row_of("zeus", never) != row_of("zeus", stopped)


def test_a_default_that_was_not_measured_is_replaced_with_a_printed_line(traces: Path) -> None:
    letters = [*LETTERS[:3], "--default-batch-size=64", "--seeds=1"]
    text = "letters tiny: no power data of the default batch size 64 or larger ones: the largest "
    assert simulate(f"--traces={traces}", *letters).stderr.startswith(text)


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_a_file_that_cannot_be_written_is_told_before_the_long_work(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.delattr("zeus_service.simulation.cli.run_all")
    for path in ("/proc/table", "/nowhere/table"):
        assert f"'{path}': No such file or directory" in the_error(
            "--synthetic", f"{option}={path}"
        )


def test_a_table_is_overwritten_but_not_by_a_command_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("an older table\n")
    arguments = ("--synthetic", "--seeds=1", "--recurrences=2", f"--csv={path}")
    the_error(*arguments, "--jobs=0")
    assert path.read_text() == "an older table\n"
    simulate(*arguments)
    assert path.read_text().startswith("workload,gpu,policy,")


def test_batch_sizes_that_are_left_out_are_named(traces: Path) -> None:
    path = traces / recorded.POWER
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("letters,net,sgd,32")))
    result = simulate(f"--traces={traces}", *LETTERS, "--seeds=1")
    assert result.stderr == ("letters tiny: batch sizes 32 have runs but no power data: left out\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name recorded runs with --traces DIR, or take --synthetic"),
        (["--drift"], "name recorded runs with --traces DIR, or take --synthetic"),
        (["--synthetic", "--seeds=0"], "'--seeds': 0 is not in the range"),
        (["--synthetic", "--recurrences=0"], "'--recurrences': 0 is not in the range"),
        (["--synthetic", "--recurrences=-1"], "'--recurrences': -1 is not in the range"),
        (["--synthetic", "--seeds=many"], "'--seeds': 'many' is not a valid integer"),
        (["--synthetic", "--eta=1.5"], "'--eta': 1.5 is not in the range"),
        (["--synthetic", "--eta=nan"], "eta_knob is nan"),
        (["--synthetic", "--beta=0"], "'--beta': 0.0 is not in the range"),
        (["--synthetic", "--beta=inf"], "beta_knob is inf"),
        (["--synthetic", "--jobs=0"], "--jobs must be at least 1"),
        (["--synthetic", "--policy=best"], "'--policy': 'best' is not one of"),
        (["--synthetic", "--workload=squad"], "'squad' is not synthetic"),
        (["--synthetic", "--gpu=v100", "--target=0.5"], "--gpu, --target: only for recorded runs"),
        (["--synthetic", "--max-epochs=5"], "--max-epochs: only for recorded runs"),
        (["--synthetic", "--default-batch-size=8"], "--default-batch-size: only for recorded"),
        (["--synthetic", "--cluster=nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--traces=nowhere"], "nowhere: no file summary_power_GPU.csv here"),
    ],
)
def test_a_wrong_argument_is_one_message(arguments: list[str], message: str) -> None:
    assert message in the_error(*arguments)


def test_recorded_and_synthetic_runs_exclude_each_other(traces: Path) -> None:
    assert "or take --synthetic" in the_error(f"--traces={traces}", "--synthetic")


def test_a_directory_without_the_papers_workloads_says_how_to_name_another(traces: Path) -> None:
    assert "--workload DATASET/NETWORK/OPTIMIZER" in the_error(f"--traces={traces}")


def test_a_cluster_without_the_workload_says_which_it_has(traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("group,start_time,end_time,dataset,runtime_ratio\na,0,1,squad,1\n")
    error = the_error(f"--traces={traces}", *LETTERS, f"--cluster={path}")
    assert error.endswith("take --workload of squad")


def test_what_is_missing_is_told_before_the_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "joblib", None)
    assert "pip install plotly" in the_error("--synthetic", "--plot=page.html")
    assert "pip install joblib" in the_error("--synthetic", "--jobs=2")
    assert simulate("--synthetic", "--seeds=1", "--recurrences=2").exit_code == 0
