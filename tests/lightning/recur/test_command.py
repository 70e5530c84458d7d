"""The command, with real Lightning runs and a service that it starts itself."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import recurring_lightning
from click.testing import CliRunner, Result
from waiting import LIMIT_S, wait_until

from zeus_lightning.cli import main
from zeus_lightning.recur.child import has_ended


def recur(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["recur", *arguments], env={"ZEUS_SERVER_URL": None})


def test_control_trials_are_compared_with_what_is_chosen(tmp_path: Path) -> None:
    result = recur(
        "--compare",
        "--recurrences=2",
        f"--folder={tmp_path / 'recur'}",
        f"--service=sqlite:///{tmp_path / 'learned.sqlite3'}",
        f"--json={tmp_path / 'recur' / 'tries.json'}",  # the driver makes this folder
        f"--env=PYTHONPATH={os.pathsep.join(sys.path)}",
        "--",
        sys.executable,
        str(recurring_lightning.__file__),
        "nightly",
    )
    logs = "".join(log.read_text() for log in tmp_path.glob("recur/run-0001/*.log"))
    assert result.exit_code == 0, result.output + logs
    value = json.loads((tmp_path / "recur" / "tries.json").read_text())
    tries = [
        (each["job_id"], each["outcome"], each["exit_code"], each["why"] == "control")
        for each in value["tries"]
    ]
    assert tries == [
        ("nightly", "converged", 0, True),
        ("nightly", "not_converged", 75, False),
        ("nightly", "converged", 0, False),
    ]
    assert value["tries"][0]["batch_size"] == 8  # the default
    # a report is 6 J and 2 s of at most 10 W after the one before it: costs of 13 J an epoch
    costs = {each["measure"]: (each["control"], each["chosen"]) for each in value["differences"]}
    assert costs == {"cost": (13, 39), "energy": (6, 18), "time": (2, 6)}
    assert "cost: 39.0 J a recurrence, control 13.0 J: +200.0 %" in result.output
    with sqlite3.connect(tmp_path / "learned.sqlite3") as connection:
        jobs = connection.execute("SELECT job_id FROM jobs ORDER BY job_id").fetchall()
    assert jobs == [("nightly",)]


def test_a_command_that_fails_without_a_trial_has_no_table_before_its_last_lines(
    tmp_path: Path,
) -> None:
    result = recur(
        f"--folder={tmp_path / 'recur'}", "--", sys.executable, "-c", "raise SystemExit('mine')"
    )
    assert result.exit_code == 1
    assert "mine" in result.output
    assert "with all its tries" not in result.output


def test_of_a_long_last_line_only_the_end_is_shown(tmp_path: Path) -> None:
    code = "print('x' * 100_000, 'mine', end='', flush=True); raise SystemExit(3)"
    result = recur(f"--folder={tmp_path / 'recur'}", "--", sys.executable, "-c", code)
    assert "ended with exit status 3" in result.output
    assert result.output.endswith("x mine\n")
    assert len(result.output) < 20_000


def test_a_run_that_has_deleted_its_output_is_still_reported(tmp_path: Path) -> None:
    code = "import shutil, sys; shutil.rmtree(sys.argv[1]); raise SystemExit(3)"
    folder = tmp_path / "recur"
    run = str(folder.joinpath("run-0001"))
    result = recur(f"--folder={folder}", "--", sys.executable, "-c", code, run)
    assert result.exit_code == 1
    assert "recurrence 1, try 1 ended with exit status 3" in result.output
    assert "No such file or directory" in result.output


def services_of(driver: psutil.Popen) -> list[psutil.Process]:
    """The processes of the service that a driver has started."""
    found = []
    for each in driver.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "zeus_service" in each.cmdline():
                found.append(each)
    return found


def test_a_terminal_that_closes_while_the_service_starts_leaves_none_behind(
    tmp_path: Path,
) -> None:
    script = "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    script += "from zeus_lightning.cli import main; main(sys.argv[1:])"  # also under `nohup`
    command = [sys.executable, "-c", script, "recur", f"--folder={tmp_path / 'recur'}", "--"]
    env = {name: value for name, value in os.environ.items() if name != "ZEUS_SERVER_URL"}
    with psutil.Popen([*command, "true"], env=env) as driver:
        wait_until(lambda: bool(services_of(driver)))
        services = services_of(driver)
        driver.send_signal(signal.SIGHUP)
        assert driver.wait(LIMIT_S) == 128 + signal.SIGHUP
    psutil.wait_procs(services, timeout=LIMIT_S)
    assert [each for each in services if each.is_running()] == []
    assert not list(tmp_path.glob("recur/run-*"))


def test_the_service_of_a_driver_that_was_killed_is_taken_over_and_ended(tmp_path: Path) -> None:
    ledger = tmp_path / "run-0001" / "ledger.jsonl"
    script = "import sys; from zeus_lightning.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "recur", f"--folder={tmp_path}"]
    env = {name: value for name, value in os.environ.items() if name != "ZEUS_SERVER_URL"}
    with psutil.Popen([*command, "--", "sleep", "1000"], env=env) as killed:
        wait_until(lambda: ledger.exists() and "started" in ledger.read_text())
        services = services_of(killed)
        killed.kill()
    assert services
    with psutil.Popen([*command, "--resume", "--", "sleep", "1000"], env=env) as driver:
        wait_until(lambda: ledger.read_text().count('"driver"') == 2)
        own = services_of(driver)
        driver.terminate()
        assert driver.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert own == []
    wait_until(lambda: all(map(has_ended, services)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--observe", "--compare", "--", "true"), "pass --observe or --compare, not both"),
        (("--every=1h", "--cron=* * * * *", "--", "true"), "pass --every or --cron, not both"),
        (("--url=http://h", "--service=sqlite:///x", "--", "true"), "--url or --service, not both"),
        (("--every=soon", "--", "true"), "'soon' is no time span"),
        (("--cron=nightly", "--", "true"), "'nightly' is no cron expression"),
        (("--env=A", "--", "true"), "'A' is not NAME=VALUE"),
        (("--csv=/no/where/a.csv", "--", "true"), "make the folder /no/where first"),
        (("--folder=/no/folder", "--csv=/no/other/a.csv", "--", "true"), "the folder /no/other"),
        ((), "Missing argument 'COMMAND...'"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = recur(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    result = recur(f"--folder={tmp_path}", "--resume", "--", "true")
    assert result.exit_code == 1
    assert "nothing to resume" in result.output
