"""Runs that fail, crash, hang and are killed, a driver that is, and a service that goes away."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import recurring_run
from click.testing import CliRunner, Result
from full_disk import full_disk
from programs import new_job, outcomes
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S, wait_until

from zeus_lightning.cli import main
from zeus_lightning.recur import child

TRIES = """
import json, os, sys
from pathlib import Path
log = Path("seen")
seen = log.read_text().split() if log.exists() else []
names = ("ZEUS_RECURRENCE", "PL_GLOBAL_SEED", "ZEUS_CONTROL", "MINE")
log.write_text(" ".join([*seen, "/".join(os.environ[name] for name in names)]))
exit_code, outcome = json.loads(sys.argv[1])[len(seen)]
print("try", len(seen), "says goodbye")
trial = dict(job_id="j", trial_number=1, generation="g", batch_size=8, reason="",
             cost_bound=None, lease_s=900.0)
trial["why"] = "control" if os.environ["ZEUS_CONTROL"] == "1" else "explore"
report = dict(sequence=1, epoch=3, time_s=1.5, energy_j=20.0, metric=0.5)
if outcome:
    Path(os.environ["ZEUS_OUTCOME_FILE"]).write_text(json.dumps(
        dict(trial=trial, outcome=outcome, report=report, cost=10.0,
        hardware=dict(estimated=True))))
sys.exit(exit_code)
"""
"""A run that ends as its argument says for each try, as exit status and outcome."""


def recur(folder: Path, url: str, *arguments: str) -> Result:
    """`zeus-lightning recur` in this process."""
    own = (f"--folder={folder / 'recur'}", f"--workdir={folder}", f"--url={url}")
    return CliRunner().invoke(main, ["recur", *own, *arguments])


def scripted(*endings: tuple[int, str | None]) -> tuple[str, ...]:
    """The command of a run that ends like this, try after try."""
    return ("--", sys.executable, "-c", TRIES, json.dumps(endings))


def run(job_id: str, what: str) -> tuple[str, ...]:
    """The command of a run with a real trial."""
    return ("--", sys.executable, str(recurring_run.__file__), job_id, what)


@contextmanager
def driver(folder: Path, url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`zeus-lightning recur` in a process of its own, whose first run is training."""
    own = (f"--folder={folder / 'recur'}", f"--workdir={folder}", f"--url={url}")
    process = subprocess.Popen(
        [str(BIN / "zeus-lightning"), "recur", *own, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = folder / "recur" / "run-0001" / "0001-01.log"

    def trains() -> bool:
        assert process.poll() is None, process.stdout and process.stdout.read()
        return log.exists() and "training" in log.read_text()

    try:
        wait_until(trains)
        yield process
    finally:
        (folder / "go").touch()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ledger(folder: Path) -> list[dict[str, Any]]:
    path = folder / "recur" / "run-0001" / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def launches(folder: Path) -> list[tuple[int, int]]:
    tries = [event["try"] for event in ledger(folder) if event["event"] == "started"]
    return [(each["recurrence"], each["attempt"]) for each in tries]


def test_a_batch_size_that_fails_is_followed_by_another_try_until_one_converges(
    service: ServiceProcess, tmp_path: Path
) -> None:
    endings = [(75, None), (1, "early_stopped"), (1, "out_of_memory"), (0, "diverged")]
    result = recur(
        tmp_path,
        service.url,
        "--compare",
        "--recurrences=2",
        "--seed=7",
        "--env=MINE=x",
        f"--csv={tmp_path / 'tries.csv'}",
        f"--plot={tmp_path / 'tries.html'}",
        *scripted(*endings, (0, "converged"), (0, "converged")),
    )
    assert result.exit_code == 0, result.output
    seen = [each.split("/") for each in (tmp_path / "seen").read_text().split()]
    assert [(number, control, mine) for number, _, control, mine in seen] == [
        *[("1", "1", "x")] * 5,
        ("2", "0", "x"),
    ]
    assert len({seed for _, seed, _, _ in seen}) == 6
    with (tmp_path / "tries.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = ["errored", "early_stopped", "out_of_memory", "diverged", "converged", "converged"]
    assert [row["outcome"] for row in rows] == expected
    columns = [each.split() for each in result.output.splitlines()]
    assert ["1.5", "8", "control", "converged", "3", "1.5", "~20.0", "~10.0"] in columns
    assert ["2.1", "8", "explore", "converged", "3", "1.5", "~20.0", "~10.0"] in columns
    # the control took four tries with a trial: 80 J; what was chosen, one
    assert "energy: 20.0 J a recurrence, control 80.0 J: -75.0 %" in result.output
    assert "early_stopped" in (tmp_path / "tries.html").read_text()


def test_any_other_error_stops_the_driver_with_the_last_lines_of_that_run(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = scripted((0, "converged"), (3, "errored"), (0, "converged"))
    arguments = ("--recurrences=3", "--seed=1", "--env=MINE=x")
    result = recur(tmp_path, service.url, *arguments, *command)
    assert result.exit_code == 1
    assert "recurrence 2, try 1 ended with exit status 3" in result.output
    assert "try 1 says goodbye" in result.output
    assert launches(tmp_path) == [(1, 1), (2, 1)]
    result = recur(
        tmp_path, service.url, *arguments, "--resume", *scripted(*[(0, "converged")] * 9)
    )
    assert result.exit_code == 0, result.output
    assert launches(tmp_path) == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_the_trial_of_a_run_that_was_killed_ends_at_once(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    result = recur(tmp_path, service.url, "--recurrences=2", *run(job, "kill"))
    assert result.exit_code == 1
    assert "recurrence 1, try 1 was killed by signal 9" in result.output
    assert outcomes(service.url, job) == ["interrupted"]


def test_a_run_that_hangs_is_ended_and_stops_the_driver(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    hang = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(1000)"
    result = recur(tmp_path, service.url, "--timeout=1s", "--", sys.executable, "-c", hang)
    assert result.exit_code == 1
    assert "recurrence 1, try 1 took longer than --timeout allows" in result.output
    (started,) = [event for event in ledger(tmp_path) if event["event"] == "started"]
    assert not psutil.pid_exists(started["pid"])


def test_two_drivers_share_a_job_and_not_a_folder(service: ServiceProcess, tmp_path: Path) -> None:
    job, other = new_job(), tmp_path / "other"
    other.mkdir()
    with driver(tmp_path, service.url, "--recurrences=2", *run(job, "wait")) as first:
        refused = recur(tmp_path, service.url, *run(job, "converge"))
        assert "another `zeus-lightning recur` uses the folder" in refused.output
        result = recur(other, service.url, "--recurrences=3", "--parallel=2", *run(job, "converge"))
        assert result.exit_code == 0, result.output
        (tmp_path / "go").touch()
        assert first.wait(timeout=LIMIT_S) == 0
    assert outcomes(service.url, job) == ["converged"] * 5


def test_a_driver_that_was_killed_takes_its_run_over_when_it_is_resumed(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    command = ("--recurrences=2", *run(job, "wait"))
    with driver(tmp_path, service.url, *command) as killed:
        killed.kill()
        killed.wait()
        with driver(tmp_path, service.url, "--resume", *command) as process:
            wait_until(lambda: [each["event"] for each in ledger(tmp_path)].count("driver") == 2)
            (tmp_path / "go").touch()
            assert process.wait(timeout=LIMIT_S) == 0
    assert launches(tmp_path) == [(1, 1), (2, 1)]
    assert outcomes(service.url, job) == ["converged"] * 2


def test_a_new_run_does_not_begin_while_one_that_a_killed_driver_has_left_still_trains(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    command = ("--recurrences=1", *run(job, "wait"))
    with driver(tmp_path, service.url, *command) as killed:
        killed.kill()
        killed.wait()
        (pid,) = [event["pid"] for event in ledger(tmp_path) if event["event"] == "started"]
        result = recur(tmp_path, service.url, *run(job, "converge"))
        assert result.exit_code == 1
        assert f"still train, as process {pid}; pass --resume to take them over" in result.output
        assert psutil.pid_exists(pid)
        (tmp_path / "go").touch()
        wait_until(lambda: child.find_process(pid, ledger(tmp_path)[-1]["created"]) is None)
    result = recur(tmp_path, service.url, "--recurrences=1", *run(job, "converge"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "recur" / "run-0002").exists()
    assert outcomes(service.url, job) == ["converged"] * 2


@pytest.mark.parametrize(
    ("earlier_s", "timeout"), [(3600, "1h"), (-3600, "1s")], ids=["an hour ago", "clock set back"]
)
def test_the_time_that_a_run_has_taken_counts_when_it_is_taken_over(
    service: ServiceProcess, tmp_path: Path, earlier_s: float, timeout: str
) -> None:
    command = run(new_job(), "wait")
    with driver(tmp_path, service.url, *command) as killed:
        killed.kill()
        killed.wait()
        events = ledger(tmp_path)
        events[-1]["at_s"] -= earlier_s
        lines = [json.dumps(event) + "\n" for event in events]
        tmp_path.joinpath("recur", "run-0001", "ledger.jsonl").write_text("".join(lines))
        with driver(tmp_path, service.url, "--resume", f"--timeout={timeout}", *command):
            wait_until(lambda: ledger(tmp_path)[-1]["event"] == "ended")
    assert ledger(tmp_path)[-1]["ending"]["cut_short"] == "timeout"


def test_runs_that_were_taken_over_end_in_order_if_the_ledger_cannot_be_written(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    with driver(tmp_path, service.url, *run(job, "wait")) as killed:
        killed.kill()
        killed.wait()
        (started,) = [event for event in ledger(tmp_path) if event["event"] == "started"]
        with full_disk():
            result = recur(tmp_path, service.url, "--resume", *run(job, "wait"))
        assert "cannot be written" in result.output
        assert child.find_process(started["pid"], started["created"]) is None
    assert outcomes(service.url, job) == ["interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_order_and_resume_goes_on(
    service: ServiceProcess, tmp_path: Path, number: signal.Signals
) -> None:
    job = new_job()
    command = ("--recurrences=2", *run(job, "wait"))
    with driver(tmp_path, service.url, *command) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert "with --resume goes on" in output
    assert outcomes(service.url, job) == ["interrupted"]
    (ended,) = [event["ending"] for event in ledger(tmp_path) if event["event"] == "ended"]
    assert ended == {"exit_code": 143, "cut_short": "signal"}  # the run ended itself
    result = recur(tmp_path, service.url, "--resume", *command)
    assert result.exit_code == 0, result.output
    assert launches(tmp_path) == [(1, 1), (1, 2), (2, 1)]
    assert outcomes(service.url, job) == ["interrupted", "converged", "converged"]


def test_a_resumed_run_keeps_its_mode(service: ServiceProcess, tmp_path: Path) -> None:
    command = ("--recurrences=1", "--", "true")
    assert recur(tmp_path, service.url, "--observe", *command).exit_code == 0
    # before it asks a service: one that it had taken over would end with it
    result = recur(tmp_path, "http://127.0.0.1:9", "--resume", *command)
    assert "was begun in mode 'observe', not 'choose'" in result.output


def test_recurrences_wait_for_a_service_that_has_gone_away(
    own_service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    with driver(tmp_path, own_service.url, "--recurrences=2", *run(job, "wait")) as process:
        assert process.stdout is not None
        own_service.kill()
        started = ledger(tmp_path)[-1]
        os.kill(started["pid"], signal.SIGUSR1)  # the run converges without the service
        while "waiting for the service" not in process.stdout.readline():
            assert process.poll() is None
        assert launches(tmp_path) == [(1, 1)]
        own_service.start()
        (tmp_path / "go").touch()
        assert process.wait(timeout=LIMIT_S) == 0, process.stdout.read()
    assert launches(tmp_path) == [(1, 1), (2, 1)]


def test_a_service_that_does_not_answer_at_the_start_is_an_error(tmp_path: Path) -> None:
    result = recur(tmp_path, "http://127.0.0.1:9", "--", "true")
    assert result.exit_code == 1
    assert "no batch size service answers" in result.output


def test_a_command_that_does_not_exist_is_an_error(service: ServiceProcess, tmp_path: Path) -> None:
    result = recur(tmp_path, service.url, "--", "no-such-program")
    assert "no-such-program cannot be run" in result.output


def test_a_command_that_starts_no_trial_gets_advice(
    service: ServiceProcess, tmp_path: Path
) -> None:
    result = recur(tmp_path, service.url, "--recurrences=1", "--", "true")
    assert result.exit_code == 0, result.output
    assert "no trial: no outcome file; does it use ZeusBSOCallback" in result.output
