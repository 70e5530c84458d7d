"""The commands of `examples/trace_driven/README.md` do what they say."""

from __future__ import annotations

import lzma
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from service.simulation import recorded
from waiting import LIMIT_S
from zeus_service.simulation.recorded_runs import RECIPES
from zeus_service.simulation.workload import Setting

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples" / "trace_driven" / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith(("python ", "zeus-service "))
]
HISTORY = (
    r"recurrence   1: batch size  256 at 100 W \(explore\): converged after 1[23] epochs(.|\n)*"
    r"1\.\d{3} times the cost of always choosing the best batch size, 64\n$"
)
TABLE = r" librispeech v100 *\n +\S+ +1\.\d{3}±\.\d{3} "


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A directory as the Zeus project publishes it, with few and small recordings."""
    epochs = recorded.workload().settings[8].epochs
    runs = {64: (7.0, 8.0, 7.0), 128: (9.0, 10.0, 9.0), 256: (12.0, 13.0, 13.0)}
    workload = replace(
        recorded.workload(),
        gpu="v100",
        settings={size: Setting(each, epochs) for size, each in runs.items()},
    )
    recorded.write(tmp_path, workload, RECIPES["librispeech"])
    rows = [
        f"{group},{start}.0,{start + 900}.0,librispeech,{ratio}"
        for group, ratio in (("0001086788b7de0f13804d22a12a27db", 0.9), ("00fe", 1.2))
        for start in range(0, 9000, 600)
    ]
    header = "group,start_time,end_time,dataset,runtime_ratio"
    (tmp_path / "alibaba_groups.csv.xz").write_bytes(
        lzma.compress("\n".join([header, *rows]).encode())
    )
    return tmp_path


def test_there_are_both_simulations() -> None:
    assert [command.split()[0] for command in COMMANDS] == [
        "python",
        "zeus-service",
        "zeus-service",
    ]


def run(folder: Path, trace: Path, command: str) -> str:
    """Run a command in a folder, with few recordings; what it prints."""
    program, *arguments = shlex.split(command.replace("$TRACE", str(trace)))
    bin_ = Path(sys.executable).parent
    arguments = [str(ROOT / each) if each.startswith("examples/") else each for each in arguments]
    result = subprocess.run(
        [str(bin_ / program), *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    ("command", "printed"),
    list(zip(COMMANDS, (HISTORY, TABLE, TABLE), strict=True)),
)
def test_a_command_of_the_readme_runs(
    trace: Path, tmp_path: Path, command: str, printed: str
) -> None:
    output = run(tmp_path, trace, command)
    assert re.search(printed, output), output
