"""Runs that fail, crash and are killed, signals, and a service that goes away."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import psutil
import pytest
import recurring_run
from click.testing import CliRunner, Result
from programs import new_job, outcomes
from records import hardware, record, report
from service_process import BIN, ServiceProcess
from waiting import LIMIT_S, wait_until

from zeus_lightning.cli import main
from zeus_lightning.recur import driver as driver_module

TRIES = """
import json, os, sys
from pathlib import Path
log = Path("seen")
seen = log.read_text().split() if log.exists() else []
names = ("ZEUS_RECURRENCE", "ZEUS_CONTROL")
log.write_text(" ".join([*seen, "/".join(os.environ.get(name, "") for name in names)]))
exit_code, outcome = json.loads(sys.argv[1])[len(seen)]
print("try", len(seen), "says goodbye")
record = json.loads(sys.argv[2]) | {"outcome": outcome}
why = "control" if os.environ["ZEUS_CONTROL"] == "1" else "explore"
record["trial"]["why"] = os.environ.get("WHY", why)
record["reason"] = os.environ.get("REASON", record["reason"])
record["job"]["default_batch_size"] = int(os.environ.get("DEFAULT", 8))
if outcome:
    Path(os.environ["ZEUS_OUTCOME_FILE"]).write_text(json.dumps(record))
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
    written = record(
        report=report(epoch=3, time_s=1.5, energy_j=20.0),
        hardware=hardware(max_power_w=20.0, estimated=True),
    )
    return ("--", sys.executable, "-c", TRIES, *map(json.dumps, (endings, written.to_json())))


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


def launches(folder: Path, run: str = "run-0001") -> list[str]:
    """The recurrences and attempts that were launched."""
    return sorted(log.stem for log in (folder / "recur" / run).glob("0*.log"))


def test_a_batch_size_that_fails_is_followed_by_another_try_until_one_converges(
    service: ServiceProcess, tmp_path: Path
) -> None:
    endings = [(0, "converged"), (75, None), (1, "early_stopped"), (1, "out_of_memory")]
    command = scripted(*endings, (0, "diverged"), (0, "converged"))
    result = recur(tmp_path, service.url, "--compare", "--recurrences=2", *command)
    assert result.exit_code == 0, result.output
    seen = (tmp_path / "seen").read_text().split()
    assert seen == ["1/1", *["2/0"] * 5]
    columns = [each.split() for each in result.output.splitlines()]
    assert ["1.1", "8", "control", "converged", "3", "1.5", "~20.0", "~25.0"] in columns
    assert ["2.1", "errored"] in columns
    for attempt, outcome in ((2, "early_stopped"), (3, "out_of_memory"), (4, "diverged")):
        assert [f"2.{attempt}", "8", "explore", outcome] in [each[:4] for each in columns]
    assert ["2.5", "8", "explore", "converged", "3", "1.5", "~20.0", "~25.0"] in columns
    # what was chosen took four tries with a trial: 80 J; the control, one
    assert ["control", "1", "of", "1", "1", "20.0", "1.5", "25.0"] in columns
    assert ["chosen", "1", "of", "1", "5", "80.0", "6.0", "100.0"] in columns


def test_control_trials_that_miss_the_target_fail_only_recurrences_that_were_to_choose(
    service: ServiceProcess, tmp_path: Path
) -> None:
    missed = scripted(*[(1, "not_converged")] * 2)
    (tmp_path / "observed").mkdir()
    result = recur(tmp_path / "observed", service.url, "--observe", "--recurrences=2", *missed)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "observed" / "seen").read_text().split() == ["1/1", "2/1"]
    assert re.search(r"control +0 of 2 ", result.output)
    result = recur(tmp_path, service.url, "--recurrences=2", *missed, WHY="control")
    assert result.exit_code == 1
    assert "2 of 2 recurrences failed" in result.output
    assert launches(tmp_path) == ["0001-01", "0002-01"]


def test_the_third_error_in_a_row_with_the_default_stops_the_driver_with_its_last_lines(
    service: ServiceProcess, tmp_path: Path
) -> None:
    endings = [(3, "errored"), (3, "errored"), (0, "converged"), *[(3, "errored")] * 3]
    result = recur(tmp_path, service.url, "--recurrences=9", *scripted(*endings))
    assert result.exit_code == 1
    stop = "recurrence 6, try 1 ended with exit status 3: 3 errors in a row with the default"
    assert stop in result.output
    assert "try 5 says goodbye" in result.output
    assert launches(tmp_path) == [f"000{number}-01" for number in range(1, 7)]


def test_errors_with_another_batch_size_than_the_default_do_not_stop_the_driver(
    service: ServiceProcess, tmp_path: Path
) -> None:
    command = scripted(*[(3, "errored")] * 4, (0, "converged"))
    result = recur(tmp_path, service.url, "--recurrences=5", *command, DEFAULT="16")
    assert launches(tmp_path) == [f"000{number}-01" for number in range(1, 6)]
    assert result.exit_code == 1
    assert "4 of 5 recurrences failed; the last one ended with exit status 3: " in result.output
    assert "run-0001/0004-01.log" in result.output


def test_a_program_that_fails_after_its_trial_is_an_error_that_says_so(
    service: ServiceProcess, tmp_path: Path
) -> None:
    result = recur(tmp_path, service.url, "--recurrences=1", *scripted((3, "completed")))
    assert result.exit_code == 1
    assert "1.1       8 explore    status 3" in result.output
    assert re.search("chosen +0 of 1 ", result.output)
    assert (
        "1 of 1 recurrences failed; the last one completed, but ended with exit status 3: "
        in result.output
    )


def test_a_recurrence_whose_batch_sizes_all_fail_stops_the_driver(
    service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "MAX_TRIES", 2)
    result = recur(tmp_path, service.url, *scripted(*[(75, None)] * 2))
    assert result.exit_code == 1
    assert "all 2 tries of recurrence 1 failed" in result.output


def test_the_trial_of_a_run_that_was_killed_ends_at_once(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    result = recur(tmp_path, service.url, "--recurrences=1", *run(job, "kill"))
    assert result.exit_code == 1
    assert "1.1      16 explore    killed" in result.output
    assert outcomes(service.url, job) == ["interrupted"]


def test_two_drivers_share_a_job_and_a_folder(service: ServiceProcess, tmp_path: Path) -> None:
    job = new_job()
    with driver(tmp_path, service.url, "--recurrences=2", *run(job, "wait")) as first:
        result = recur(tmp_path, service.url, "--recurrences=1", *run(job, "converge"))
        assert result.exit_code == 0, result.output
        (tmp_path / "go").touch()
        assert first.wait(timeout=LIMIT_S) == 0
    assert outcomes(service.url, job) == ["converged"] * 3
    assert launches(tmp_path, "run-0002") == ["0001-01"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_in_order_and_the_same_command_goes_on(
    service: ServiceProcess, tmp_path: Path, number: signal.Signals
) -> None:
    job = new_job()
    command = ("--recurrences=2", *run(job, "wait"))
    log = tmp_path / "recur" / "run-0001" / "0001-01.log"
    with driver(tmp_path, service.url, *command) as process:
        process.send_signal(number)
        if number == signal.SIGHUP:  # a terminal that closes may send it twice
            wait_until(lambda: "ending" in log.read_text())
            process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number
    assert "1.1      16 explore    interrupted" in output  # the run ended itself
    assert outcomes(service.url, job) == ["interrupted"]
    if number == signal.SIGINT:
        result = recur(tmp_path, service.url, *command)
        assert result.exit_code == 0, result.output
        assert outcomes(service.url, job) == ["interrupted", "converged", "converged"]


def test_a_second_signal_kills_the_run(service: ServiceProcess, tmp_path: Path) -> None:
    hang = "import signal, time; signal.signal(15, lambda *_: print('ending', flush=True)); "
    hang += "print('training', flush=True)\nwhile True: time.sleep(1)"
    log = tmp_path / "recur" / "run-0001" / "0001-01.log"
    with driver(tmp_path, service.url, "--", sys.executable, "-c", hang) as process:
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "ending" in log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 128 + signal.SIGINT
    assert not child.is_running()


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
        assert launches(tmp_path) == ["0001-01"]
        own_service.start()
        (tmp_path / "go").touch()
        assert process.wait(timeout=LIMIT_S) == 0, process.stdout.read()
    assert launches(tmp_path) == ["0001-01", "0002-01"]


@pytest.mark.parametrize(
    ("url", "program", "message"),
    [
        ("http://127.0.0.1:9", "true", "no service answers"),
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
    assert "no trial; the script must use ZeusBSOCallback" in result.output
    assert "succeeded" not in result.output  # no table


def test_a_baseline_says_what_it_reached(tmp_path: Path, service: ServiceProcess) -> None:
    for reason in ("baseline 1 of 3: best val_acc 0.97", ""):
        folder = tmp_path / (reason[:8] or "none")
        folder.mkdir()
        one = ("--recurrences=1", *scripted((0, "completed")))
        output = recur(folder, service.url, *one, WHY="baseline", REASON=reason).output
        lines = output.splitlines()
        (row,) = (index for index, line in enumerate(lines) if " 1.1 " in line)
        assert (lines[row + 1] == f"        {reason}") is bool(reason)
        assert lines[row + 1].strip()
