"""Runs that fail, crash, hang and are killed, a driver that is, and a service that goes away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import recurring_run
from click.testing import CliRunner, Result
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
names = ("ZEUS_RECURRENCE", "PL_GLOBAL_SEED", "ZEUS_CONTROL")
log.write_text(" ".join([*seen, "/".join(os.environ.get(name, "") for name in names)]))
exit_code, outcome = json.loads(sys.argv[1])[len(seen)]
print("try", len(seen), "says goodbye")
trial = dict(job_id="j", trial_number=1, generation="g", batch_size=8, reason="",
             cost_bound=None, lease_s=900.0, target_metric=0.9)
trial["why"] = "control" if os.environ["ZEUS_CONTROL"] == "1" else "explore"
report = dict(sequence=1, epoch=3, time_s=1.5, energy_j=20.0, metric=0.5)
if outcome:
    Path(os.environ["ZEUS_OUTCOME_FILE"]).write_text(json.dumps(
        dict(trial=trial, job=dict(default_batch_size=int(os.environ.get("DEFAULT", 8))),
        outcome=outcome, report=report, cost_j=10.0, hardware=dict(estimated=True))))
sys.exit(exit_code)
"""
"""A run that ends as its argument says for each try, as exit status and outcome."""


def recur(folder: Path, url: str, *arguments: str, **env: str) -> Result:
    """`zeus-lightning recur` in this process."""
    own = (f"--folder={folder / 'recur'}", f"--url={url}")
    with chdir(folder):
        return CliRunner().invoke(main, ["recur", *own, *arguments], env=env)


def scripted(*endings: tuple[int, str | None]) -> tuple[str, ...]:
    """The command of a run that ends like this, try after try."""
    return ("--", sys.executable, "-c", TRIES, json.dumps(endings))


def run(job_id: str, what: str) -> tuple[str, ...]:
    """The command of a run with a real trial."""
    return ("--", sys.executable, str(recurring_run.__file__), job_id, what)


@contextmanager
def driver(
    folder: Path, url: str, *arguments: str, nohup: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """`zeus-lightning recur` in a process of its own, whose first run is training."""
    hangup = signal.SIG_IGN if nohup else signal.SIG_DFL
    own = (f"--folder={folder / 'recur'}", f"--url={url}")
    process = subprocess.Popen(
        [str(BIN / "zeus-lightning"), "recur", *own, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
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
    endings = [(0, "converged"), (75, None), (1, "early_stopped"), (1, "out_of_memory")]
    result = recur(
        tmp_path,
        service.url,
        "--compare",
        "--recurrences=2",
        "--seed=7",
        f"--json={tmp_path / 'tries.json'}",
        *scripted(*endings, (0, "diverged"), (0, "converged")),
    )
    assert result.exit_code == 0, result.output
    seen = [each.split("/") for each in (tmp_path / "seen").read_text().split()]
    assert [(number, control) for number, _, control in seen] == [("1", "1"), *[("2", "0")] * 5]
    assert len({seed for _, seed, _ in seen}) == 6
    rows = json.loads((tmp_path / "tries.json").read_text())["tries"]
    expected = ["converged", "errored", "early_stopped", "out_of_memory", "diverged", "converged"]
    assert [row["outcome"] for row in rows] == expected
    columns = [each.split() for each in result.output.splitlines()]
    assert ["1.1", "8", "control", "converged", "3", "1.5", "~20.0", "~10.0"] in columns
    assert ["2.5", "8", "explore", "converged", "3", "1.5", "~20.0", "~10.0"] in columns
    # what was chosen took four tries with a trial: 80 J; the control, one
    assert "energy: 80.0 J a recurrence, control 20.0 J: 300.0 % more" in result.output


def test_the_third_error_in_a_row_with_the_default_stops_the_driver_with_its_last_lines(
    service: ServiceProcess, tmp_path: Path
) -> None:
    endings = [(3, "errored"), (3, "errored"), (0, "converged"), *[(3, "errored")] * 3]
    result = recur(tmp_path, service.url, "--recurrences=9", *scripted(*endings))
    assert result.exit_code == 1
    stop = "recurrence 6, try 1 ended with exit status 3: 3 errors in a row with the default"
    assert stop in result.output
    assert "try 5 says goodbye" in result.output
    assert launches(tmp_path) == [(number, 1) for number in range(1, 7)]
    endings += [(0, "converged")] * 9
    result = recur(tmp_path, service.url, "--recurrences=7", "--resume", *scripted(*endings))
    assert launches(tmp_path)[6:] == [(6, 2), (7, 1)]
    assert result.exit_code == 1
    assert "4 of 7 recurrences failed" in result.output
    assert "run-0001/0005-01.log" in result.output


def test_errors_with_another_batch_size_than_the_default_do_not_stop_the_driver(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = scripted(*[(3, "errored")] * 4, (0, "converged"))
    result = recur(tmp_path, service.url, "--recurrences=5", *command, DEFAULT="16")
    assert launches(tmp_path) == [(number, 1) for number in range(1, 6)]
    assert result.exit_code == 1
    assert "4 of 5 recurrences failed" in result.output


def test_the_first_error_can_be_made_to_stop_the_driver(
    service: ServiceProcess, tmp_path: Path
) -> None:
    arguments = ("--recurrences=3", "--stop-on-error")
    command = scripted((0, "converged"), (3, "errored"))
    result = recur(tmp_path, service.url, *arguments, *command, DEFAULT="16")
    assert result.exit_code == 1
    assert "recurrence 2, try 1 ended with exit status 3. The last lines" in result.output
    assert launches(tmp_path) == [(1, 1), (2, 1)]
    command = scripted(*[(0, "converged")] * 9)
    result = recur(tmp_path, service.url, *arguments, "--resume", *command)
    assert result.exit_code == 0, result.output
    assert launches(tmp_path)[2:] == [(2, 2), (3, 1)]


def test_the_trial_of_a_run_that_was_killed_ends_at_once(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    result = recur(tmp_path, service.url, "--stop-on-error", *run(job, "kill"))
    assert result.exit_code == 1
    assert "recurrence 1, try 1 was killed by signal 9" in result.output
    assert outcomes(service.url, job) == ["interrupted"]


def test_a_run_that_hangs_is_ended_and_stops_the_driver(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    hang = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid()); "
    hang += "time.sleep(1000)"
    result = recur(tmp_path, service.url, "--timeout=1s", "--", sys.executable, "-c", hang)
    assert result.exit_code == 1
    assert "recurrence 1, try 1 took longer than --timeout allows" in result.output
    (log,) = tmp_path.glob("recur/run-0001/*.log")
    assert not psutil.pid_exists(int(log.read_text()))


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


def test_what_a_killed_driver_leaves_trains_on_and_no_other_run_begins_before_it_has_ended(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    command = ("--recurrences=2", *run(job, "wait"))
    with driver(tmp_path, service.url, *command) as killed:
        (process,) = psutil.Process(killed.pid).children()
        killed.kill()
        killed.wait()
        for arguments in (command, ("--resume", *command)):
            refused = recur(tmp_path, service.url, *arguments)
            assert refused.exit_code == 1
            assert f"still train, as process {process.pid}; wait until" in refused.output
        (tmp_path / "go").touch()
        process.wait(LIMIT_S)
    result = recur(tmp_path, service.url, "--resume", *command)
    assert result.exit_code == 0, result.output
    assert launches(tmp_path) == [(1, 1), (2, 1)]
    assert outcomes(service.url, job) == ["converged"] * 2


def test_a_run_that_was_killed_with_its_driver_is_tried_again(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    command = ("--recurrences=1", *run(job, "wait"))
    with driver(tmp_path, service.url, *command) as killed:
        (process,) = psutil.Process(killed.pid).children()
        for each in (killed, process):
            each.kill()
            each.wait()
    result = recur(tmp_path, service.url, "--resume", *command)
    assert result.exit_code == 0, result.output
    assert launches(tmp_path) == [(1, 1), (1, 2)]
    assert outcomes(service.url, job) == ["interrupted", "converged"]


def test_recurrences_begin_an_interval_after_each_other_also_across_drivers(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = ("--every=1h", "--recurrences=2", *run(new_job(), "wait"))
    (tmp_path / "go").touch()
    with driver(tmp_path, service.url, *command) as process:
        wait_until(lambda: ledger(tmp_path)[-1]["event"] == "ended")
        time.sleep(0.5)  # in which the second one would begin if it came at once
        process.terminate()
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert launches(tmp_path) == [(1, 1)]
    events = ledger(tmp_path)
    events[1]["at_s"] -= 3600
    lines = [json.dumps(event) + "\n" for event in events]
    tmp_path.joinpath("recur", "run-0001", "ledger.jsonl").write_text("".join(lines))
    result = recur(tmp_path, service.url, "--resume", *command)
    assert result.exit_code == 0, result.output
    assert launches(tmp_path) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_in_order_and_resume_goes_on(
    service: ServiceProcess, tmp_path: Path, number: signal.Signals
) -> None:
    job = new_job()
    command = ("--recurrences=2", *run(job, "wait"))
    runs = tmp_path / "recur" / "run-0001"
    with driver(tmp_path, service.url, *command) as process:
        process.send_signal(number)
        if number == signal.SIGHUP:  # a terminal that closes may send it twice
            wait_until(lambda: "ending" in (runs / "0001-01.log").read_text())
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


def test_under_nohup_a_terminal_may_close(service: ServiceProcess, tmp_path: Path) -> None:
    command = ("--recurrences=1", *run(new_job(), "wait"))
    with driver(tmp_path, service.url, *command, nohup=True) as process:
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert process.wait(LIMIT_S) == 0


def test_recurrences_wait_for_a_service_that_has_gone_away(
    own_service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    with driver(tmp_path, own_service.url, "--recurrences=2", *run(job, "wait")) as process:
        assert process.stdout is not None
        own_service.kill()
        (child_process,) = psutil.Process(process.pid).children()
        child_process.send_signal(signal.SIGUSR1)  # the run converges without the service
        while "waiting for the service" not in process.stdout.readline():
            assert process.poll() is None
        assert launches(tmp_path) == [(1, 1)]
        own_service.start()
        (tmp_path / "go").touch()
        assert process.wait(timeout=LIMIT_S) == 0, process.stdout.read()
    assert launches(tmp_path) == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("url", "program", "message"),
    [
        ("http://127.0.0.1:9", "true", "no batch size service answers"),
        (None, "no-such-program", "no-such-program cannot be run"),
    ],
)
def test_what_cannot_start_is_an_error(
    service: ServiceProcess, tmp_path: Path, url: str | None, program: str, message: str
) -> None:
    result = recur(tmp_path, url or service.url, "--", program)
    assert result.exit_code == 1
    assert message in result.output


def test_a_command_that_starts_no_trial_gets_advice(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = ("--recurrences=1", "--", "true")
    result = recur(tmp_path, service.url, "--observe", *command)
    assert result.exit_code == 0, result.output
    assert "no trial: no outcome file; does it use ZeusBSOCallback" in result.output
