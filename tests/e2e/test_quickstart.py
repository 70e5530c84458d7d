"""The main job, as a newcomer runs it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import runpy
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pexpect
import psutil
import pytest
import requests
from forked import CONTEXT, set_environment
from pexpect.fdpexpect import fdspawn
from rich.console import Console
from waiting import LIMIT_S, wait_until

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def command(folder: Path, runs: int) -> list[str]:
    options = [f"--runs={runs}", "--controls=1", f"--folder={folder}"]
    return [sys.executable, str(QUICKSTART), *options]


def quickstart(folder: Path, runs: int) -> str:
    """Run the example to its end; what it prints."""
    of_another_service = {"ZEUS_BSO_TOKEN": "t" * 32, "ZEUS_BSO_READ_TOKEN": "r" * 32}
    env = {**os.environ, **of_another_service, "COLUMNS": "120"}
    result = subprocess.run(
        command(folder, runs),
        env=env,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,  # it trains three times: 45 s on a quiet machine
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def finished(folder: Path) -> dict[int, tuple[Any, ...]]:
    """The trials that have ended, as the database has them."""
    path = folder / "quickstart.sqlite3"
    if not path.exists():
        return {}
    with sqlite3.connect(path, timeout=LIMIT_S) as connection:
        try:
            rows = connection.execute(
                "SELECT trial_number, batch_size, outcome, cost, why FROM trials"
                " WHERE outcome IS NOT NULL"
            ).fetchall()
        except sqlite3.OperationalError:  # not migrated yet
            return {}
    return {row[0]: row[1:] for row in rows}


Trials = dict[int, tuple[Any, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def before(folder: Path) -> Trials:
    """What had ended when the example was killed; its service ends with it."""
    with (folder / "output").open("wb") as output:
        process = psutil.Popen(command(folder, runs=12), stdout=output, stderr=output)

    def has_finished_a_trial() -> bool:
        assert process.poll() is None, (folder / "output").read_text()
        return bool(finished(folder))

    wait_until(has_finished_a_trial)
    family = [process, *process.children(recursive=True)]
    assert len(family) == 4  # the example, what ends gunicorn with it, gunicorn, and its worker
    process.kill()
    _, left = psutil.wait_procs(family, timeout=LIMIT_S)
    assert left == []
    return finished(folder)


@pytest.fixture(scope="module")
def printed(folder: Path, before: Trials) -> str:
    """What it prints when it is started again."""
    return quickstart(folder, runs=2)


def test_once_killed_it_goes_on_from_what_it_learned(
    folder: Path, before: Trials, printed: str
) -> None:
    after = finished(folder)
    assert before.items() <= after.items()
    assert len(after) > len(before)
    known = re.search(r"continues after (\d+) trials", printed)
    assert known
    assert int(known[1]) >= len(before)


def test_it_prints_each_run_and_a_best_batch_size(
    folder: Path, before: Trials, printed: str
) -> None:
    rows = re.findall(r"^ *(\d+) +(\d+) +(\w+) +(\w+) ", printed, re.MULTILINE)
    trials = finished(folder)
    controls = [trial for trial in trials.values() if trial[3] == "control"]
    assert [trial[:2] for trial in controls] == [(64, "converged")]
    assert len(re.findall(r"^ +64 +control +converged ", printed, re.MULTILINE)) == 1
    chosen = {number: trial for number, trial in trials.items() if trial[3] != "control"}
    new = [trial for number, trial in chosen.items() if number not in before]
    assert [(int(row[1]), row[3]) for row in rows] == [trial[:2] for trial in new]
    assert [row[0] for row in rows if row[3] == "converged"] == ["1", "2"]
    best = re.search(r"Best batch size so far: (\d+), at a mean cost of ([\d.]+) J", printed)
    assert best
    # Which one it is, is the policy's to say: it goes by the batch sizes beside, too.
    converged = [trial for trial in trials.values() if trial[1] == "converged"]

    def cost(batch_size: int) -> float:
        return mean(cost for size, _, cost, _ in converged if size == batch_size)

    assert float(best[2]) == pytest.approx(cost(int(best[1])), abs=0.05)
    assert f"The default, 64, costs {cost(64):.1f} J" in printed
    assert ("Gray: the run missed" in printed) == any(row[3] != "converged" for row in rows)
    assert "A small network is trained 2 times" in printed
    saved = re.search(
        r"Savings compared with the default so far: (-?\d+) J "
        r"\(95 % interval: (-?\d+) to (-?\d+) J",
        printed,
    )
    assert saved
    proven = int(saved[2]) > 0 or int(saved[3]) < 0
    assert ("do not prove a saving" in printed) != proven
    ended = sum(trial[2] for trial in trials.values())  # without the run that was killed
    assert int(saved[1]) == pytest.approx(len(converged) * cost(64) - ended, abs=0.51)
    assert "press Enter" not in printed
    path = folder / "quickstart.sqlite3"
    with sqlite3.connect(path) as connection:
        specs = connection.execute("SELECT spec FROM jobs").fetchall()
    assert [json.loads(spec)["eta_knob"] for (spec,) in specs] == [1]  # no time by the clock
    assert re.search(r"Energy by (nvml|rapl|cpu-estimate \(an estimate)", printed)


PROMPT = r"See the job at (http://[\d.:]+)/ until you press Enter\. "


@pytest.mark.usefixtures("printed")
def test_at_a_terminal_the_page_can_be_opened_after_training_until_ctrl_c(folder: Path) -> None:
    """The job has learned; it trains once more."""
    program, *arguments = command(folder, runs=1)
    demo = pexpect.spawn(
        program,
        arguments,
        env=at_a_terminal(),
        timeout=LIMIT_S,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored under `&`
    )
    demo.logfile_read = io.StringIO()
    demo.expect(PROMPT)
    url = demo.match[1]
    assert requests.get(url, timeout=LIMIT_S).ok
    demo.send("\x03")
    demo.expect(pexpect.EOF)
    demo.close()
    shown = demo.logfile_read.getvalue()
    assert demo.exitstatus == 0, shown
    assert "Traceback" not in shown
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=LIMIT_S)


def at_a_terminal() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    return env | {"COLUMNS": "120", "TERM": "dumb"}


def sum_up(terminal: str, folder: Path, environment: dict[str, str]) -> None:
    """Run the example without a recurrence, at a terminal."""
    set_environment(environment)
    device = os.open(terminal, os.O_RDWR)
    for number in range(3):
        os.dup2(device, number)
    sys.stdin = os.fdopen(0)
    runpy.run_path(str(QUICKSTART))["run_job"](0, 0, folder, Console())


@pytest.mark.parametrize("key", ["\n", "\x04"], ids=["Enter", "Ctrl-D"])
@pytest.mark.usefixtures("printed")
def test_so_it_can_until_another_key_ends_it(folder: Path, key: str) -> None:
    ours, its = pty.openpty()
    arguments = (os.ttyname(its), folder, at_a_terminal())
    process = CONTEXT.Process(target=sum_up, args=arguments)
    process.start()
    try:
        terminal = fdspawn(ours, timeout=LIMIT_S, encoding="utf-8")
        terminal.expect(PROMPT)
        url = terminal.match[1]
        assert requests.get(url, timeout=LIMIT_S).ok
        terminal.send(key)
        process.join(LIMIT_S)
        assert process.exitcode == 0
        with pytest.raises(requests.ConnectionError):
            requests.get(url, timeout=LIMIT_S)
    finally:
        process.kill()
        process.join()
        os.close(ours)
        os.close(its)
