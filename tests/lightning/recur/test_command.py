"""The command, with real trials, a service that it starts itself, and a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import recurring_run
from click.testing import CliRunner, Result
from programs import new_job
from records import hardware, record, report, trial_start
from service_process import BIN, ServiceProcess, free_port
from waiting import LIMIT_S, wait_until

from zeus_lightning.cli import main
from zeus_lightning.recur.summary import HEADER


def recur(*arguments: str) -> Result:
    env = {"ZEUS_SERVER_URL": None, "PYTHONPATH": os.pathsep.join(sys.path)}
    return CliRunner().invoke(main, ["recur", *arguments], env=env)


def test_control_trials_are_compared_with_what_is_chosen(tmp_path: Path) -> None:
    port = free_port()
    result = recur(
        *("--compare", "--recurrences=2", f"--port={port}", f"--folder={tmp_path}", "--"),
        *(sys.executable, str(recurring_run.__file__), new_job(), "train", "0.9", "0.1", "0.9"),
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("run-0001/*.log"))
    assert result.exit_code == 0, result.output + logs
    assert f"Service until this command ends: http://127.0.0.1:{port}" in result.output
    tries = re.findall(r"^ +(\d+)\.\d+ +(\d+) (\w+) +(\w+)", result.output, re.MULTILINE)
    assert [(number, why == "control", outcome) for number, _, why, outcome in tries] == [
        ("1", True, "converged"),
        ("2", False, "early_stopped"),
        ("2", False, "converged"),
    ]
    assert tries[0][1] == "16"  # the default
    # An epoch takes 4 J, and 0.1 s of at most 100 W: it costs 7 J. The second run is stopped after
    # two, at twice the cost of the first.
    columns = [each.split() for each in result.output.splitlines()]
    assert ["control", "1", "of", "1", "1", "4.0", "0.1", "7.0"] in columns
    assert ["chosen", "1", "of", "1", "2", "12.0", "0.3", "21.0"] in columns
    assert "so far, compared with its default batch size" in result.output
    for amount in ("energy saved: -8.0 J (", "time saved: -0.2 s ("):
        assert amount in result.output
    with sqlite3.connect(tmp_path / "zeus.sqlite3") as connection:
        ((jobs,),) = connection.execute("SELECT count(*) FROM jobs")
    assert jobs == 1


def test_a_command_that_fails_without_a_trial_has_its_last_lines_and_no_table(
    service: ServiceProcess, tmp_path: Path
) -> None:
    code = "print('x' * 100_000, 'mine', end='', flush=True); raise SystemExit(3)"
    result = recur(f"--folder={tmp_path}", f"--url={service.url}", "--", sys.executable, "-c", code)
    assert result.exit_code == 1
    assert "recurrence 1, try 1 ended with exit status 3" in result.output
    assert "x mine\n" in result.output  # the line's end alone
    assert len(result.output) < 20_000
    assert "mean per recurrence" not in result.output


def test_a_terminal_that_closes_while_the_service_starts_leaves_none_behind(
    tmp_path: Path,
) -> None:
    script = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    script += "from zeus_lightning.cli import main; main(sys.argv[1:])"  # also under `nohup`
    command = [sys.executable, "-c", script, "recur", f"--folder={tmp_path / 'recur'}", "--"]
    env = {name: value for name, value in os.environ.items() if name != "ZEUS_SERVER_URL"}
    with psutil.Popen([*command, "true"], env=env) as driver:
        wait_until(lambda: bool(driver.children()))
        services = driver.children(recursive=True)
        driver.send_signal(signal.SIGHUP)
        assert driver.wait(LIMIT_S) == -signal.SIGHUP
    _, left = psutil.wait_procs(services, timeout=LIMIT_S)
    assert left == []
    assert not list(tmp_path.glob("recur/run-*/*.json"))


LARGE = {"epoch": 100, "time_s": 1234567.8, "energy_j": 1234567890.1}
RUN = """
import json, os, sys
from pathlib import Path
again = Path(os.environ["ZEUS_OUTCOME_FILE"]).stem.endswith("-01")
record = json.loads(sys.argv[1]) | {"outcome": "out_of_memory" if again else "converged"}
Path(os.environ["ZEUS_OUTCOME_FILE"]).write_text(json.dumps(record))
"""
"""A run whose first try fails, and whose second one converges."""


def lines_on_a_terminal(*command: str) -> list[str]:
    """What a command prints on a terminal of 80 columns, without the control sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env | {"TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    try:
        with suppress(OSError):  # Linux: the other side is closed
            while part := os.read(ours, 65536):
                shown += part
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
        assert process.wait(timeout=LIMIT_S) == 0, text
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return re.split(r"[\r\n]+", text)


def test_a_terminal_of_80_columns_wraps_no_line_of_a_try_and_no_status(
    service: ServiceProcess, tmp_path: Path
) -> None:
    written = record(
        trial=trial_start(batch_size=16384, why="explore", reason="a long story " * 30),
        hardware=hardware(max_power_w=2800.0, estimated=True),
        report=report(**LARGE),
        reason="CUDA out of memory. " * 30,
    )
    shown = lines_on_a_terminal(
        *(str(BIN / "zeus-lightning"), "recur", f"--url={service.url}", "--compare"),
        *("--recurrences=2", f"--folder={tmp_path}"),
        *("--", sys.executable, "-c", RUN, json.dumps(written.to_json())),
    )
    tries = [each for each in shown if re.match(r" +\d\.\d ", each)]
    assert len(tries) == 4, shown
    (first,) = [each for each in tries if each.startswith("   1.1 ")]
    assert first.startswith("   1.1   16384 explore    out_of_memory    100  1234568")
    assert first.endswith("~1234567890 ~2345678865")
    assert shown.count(HEADER) == 1
    status = [each for each in shown if "recurrence 2 of 2, try 1" in each]
    assert status
    assert [each for each in (HEADER, *tries, *status) if len(each) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--observe", "--compare", "--", "true"), "pass --observe or --compare, not both"),
        (("--url=http://a", "--port=9", "--", "true"), "pass --url or --port, not both"),
        ((), "Missing argument 'COMMAND...'"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = recur(*arguments)
    assert result.exit_code == 2
    assert message in result.output
