"""The lines of tries fit into a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import get_args

from records import report, trial_start
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S

from zeus_lightning.messages import Outcome, Why
from zeus_lightning.recur.display import HEADER, line
from zeus_lightning.recur.outcome_file import RunOutcome
from zeus_lightning.recur.progress import Ending, Try

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


def test_a_terminal_of_80_columns_wraps_no_line_of_a_try_and_not_the_bar(
    service: ServiceProcess, tmp_path: Path
) -> None:
    trial = trial_start(batch_size=16384, why="control", reason="a long story " * 30)
    record = {"trial": trial.to_json(), "reason": "CUDA out of memory. " * 30}
    record["hardware"] = {"estimated": True}
    record |= {"report": report(**LARGE).to_json(), "cost": 2345678901.2}
    shown = lines_on_a_terminal(
        *(str(BIN / "zeus-lightning"), "recur", f"--url={service.url}", "--compare"),
        *("--recurrences=4", "--parallel=4", f"--folder={tmp_path}", "--every=1s"),
        *(f"--csv={tmp_path / 'tries.csv'}", "--", sys.executable, "-c", RUN, json.dumps(record)),
    )
    tries = [each for each in shown if re.match(r" +\d\.\d ", each)]
    assert len(tries) == 8, shown
    (first,) = [each for each in tries if each.startswith("   1.1 ")]
    assert first.startswith("   1.1   16384 control    out_of_memory    100  1234568")
    assert first.endswith("~1234567890 ~2345678901")
    assert shown.count(HEADER) == 1
    bars = [each for each in shown if each.startswith("recurrences")]
    assert bars
    assert [each for each in (HEADER, *tries, *bars) if len(each) > 80] == []
    assert "CUDA out of memory. CUDA out of memory." in (tmp_path / "tries.csv").read_text()


def test_no_outcome_makes_a_line_longer_than_80_columns() -> None:
    for why, outcome, estimated in itertools.product(
        get_args(Why), (*get_args(Outcome), None), (True, False)
    ):
        run = RunOutcome(
            trial=trial_start(batch_size=16384, why=why),
            outcome=outcome,
            reason="a long story " * 30,
            report=report(**LARGE),
            cost=2345678901.2,
            estimated=estimated,
        )
        for recorded, code in itertools.product((run, None), (0, 1, 75, -9, None)):
            each = Try(recurrence=1000, attempt=12, control=why == "control", seed=None)
            shown = line(each, Ending(exit_code=code, run=recorded))
            assert len(shown) <= 80, shown


def test_a_trial_that_was_killed_has_its_size_and_joules_though_a_pipeline_ended_with_0() -> None:
    run = RunOutcome(
        trial=trial_start(batch_size=64, why="explore"),
        outcome=None,
        reason="",
        report=report(epoch=2, time_s=3.0, energy_j=40.0),
        cost=50.0,
        estimated=False,
    )
    shown = line(
        Try(recurrence=1, attempt=1, control=False, seed=None), Ending(exit_code=0, run=run)
    )
    assert shown.split() == ["1.1", "64", "explore", "killed", "2", "3.0", "40.0", "50.0"]
