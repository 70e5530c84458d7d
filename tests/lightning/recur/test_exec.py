"""`zeus-lightning exec`: exit statuses for a scheduler that knows nothing else."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import recurring_run
from programs import new_job, outcomes
from ranks import SCRIPT
from records import record, trial_start
from service_process import BIN, ServiceProcess, free_port
from waiting import LIMIT_S, wait_until

EXEC = (str(BIN / "zeus-lightning"), "exec", "--")
WRITE = """
import json, os, sys
outcome, status = json.loads(sys.argv[1])
if outcome != "no file":
    record = json.loads(sys.argv[2]) | {"outcome": outcome}
    with open(os.environ["ZEUS_OUTCOME_FILE"], "w") as file:
        json.dump(record, file)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""A run that writes an outcome, and ends with an exit status, or by a signal."""


def variables(**changed: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ZEUS_")}
    return own | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"} | changed


def status_of(*command: str, **changed: str) -> int:
    env = variables(**changed)
    return subprocess.run([*EXEC, *command], env=env, check=False, timeout=LIMIT_S).returncode


def writes(outcome: str | None, status: int, why: str = "explore") -> tuple[str, ...]:
    """The command of a run that ends like this."""
    written = json.dumps(record(trial=trial_start(why=why)).to_json())
    return (sys.executable, "-c", WRITE, json.dumps([outcome, status]), written)


@pytest.mark.parametrize(
    ("outcome", "status", "why", "expected"),
    [
        ("not_converged", 0, "explore", 75),  # the program went on after the failure
        ("out_of_memory", -signal.SIGKILL, "explore", 75),
        ("diverged", 1, "control", 1),  # another run would be the same
        ("converged", 4, "explore", 4),
        ("interrupted", -signal.SIGTERM, "explore", 128 + signal.SIGTERM),
        (None, 3, "explore", 3),  # there is no service to ask
    ],
)
def test_a_failed_batch_size_is_75_and_any_other_status_is_the_commands_own(
    tmp_path: Path, outcome: str | None, status: int, why: str, expected: int
) -> None:
    assert status_of(*writes(outcome, status, why), TMPDIR=str(tmp_path)) == expected
    assert list(tmp_path.iterdir()) == []  # of its private outcome file


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_run_has_a_shells_status(program: str, status: int) -> None:
    done = subprocess.run([*EXEC, program], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(f"Error: {program} cannot be run: ")


def test_an_outcome_file_that_is_named_is_used_and_its_old_contents_do_not_count(
    tmp_path: Path,
) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(record(outcome="not_converged").to_json()))
    assert status_of(*writes("no file", 3), ZEUS_OUTCOME_FILE=str(path)) == 3
    assert status_of(*writes("diverged", 1), ZEUS_OUTCOME_FILE=str(path)) == 75
    assert json.loads(path.read_text())["outcome"] == "diverged"


@pytest.mark.parametrize(
    ("what", "expected", "outcome"),
    [
        ("fail", 75, "out_of_memory"),
        ("break", 75, "out_of_memory"),
        ("kill", 128 + signal.SIGKILL, None),
    ],
)
def test_the_service_is_asked_if_the_file_knows_of_no_failed_batch_size(
    service: ServiceProcess, what: str, expected: int, outcome: str | None
) -> None:
    job = new_job()
    command = (sys.executable, str(recurring_run.__file__), job, what)
    assert status_of(*command, ZEUS_SERVER_URL=service.url) == expected
    assert outcomes(service.url, job) == [outcome]


def test_a_service_that_does_not_answer_changes_no_status() -> None:
    env = variables(ZEUS_SERVER_URL="http://127.0.0.1:9")
    command = [*EXEC, *writes(None, 3)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "cannot tell whether the batch size failed" in done.stderr


def under_torchrun(
    service: ServiceProcess, folder: Path, job: str, scenario: str, nodes: int
) -> list[int]:
    """The exit statuses of `exec` on each node, around a torchrun with one rank a node."""
    arguments = {"strategy": "ddp", "devices": 1, "num_nodes": nodes}
    env = variables(
        TRAINER_ARGUMENTS=json.dumps(arguments),
        LET_THROUGH="1",
        ZEUS_JOB_ID=job,
        ZEUS_SERVER_URL=service.url,
    )
    torchrun = ("-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1")
    torchrun += ("--master-addr=127.0.0.1", f"--master-port={free_port()}")
    script = (str(SCRIPT), str(folder), f"{scenario}={service.url}")
    processes = [
        subprocess.Popen([*EXEC, sys.executable, *torchrun, f"--node-rank={n}", *script], env=env)
        for n in range(nodes)
    ]
    return [process.wait(LIMIT_S) for process in processes]


def test_two_nodes_under_torchrun_are_both_75_if_the_batch_size_fails(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = new_job()
    assert under_torchrun(service, tmp_path, job, "memory-1", nodes=2) == [75, 75]
    assert outcomes(service.url, job) == ["out_of_memory"]


RECORDS_SIGNALS = """
import signal, sys, time
def record(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
               signal.SIGUSR2):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, record)
print("ready", flush=True)
while True:
    time.sleep(0.05)  # pause() would miss a signal that comes just before it
"""


def starts(ignored: signal.Signals | None = None) -> subprocess.Popen[str]:
    """`exec` with a command that prints the signals that it gets."""

    def prepare() -> None:  # under `nohup` and a shell's `&`, the tests' own process ignores some
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN if number is ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [*EXEC, sys.executable, "-c", RECORDS_SIGNALS],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,
    )


def test_signals_reach_the_command_and_its_status_is_kept() -> None:
    sent = ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM"]
    with starts() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for name in sent:
            process.send_signal(signal.Signals[name])
            assert process.stdout.readline() == f"{name}\n"
        assert process.wait(LIMIT_S) == 7


def test_under_nohup_the_command_ignores_sighup() -> None:
    with starts(ignored=signal.SIGHUP) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "SIGTERM\n"
        assert process.wait(LIMIT_S) == 7


def test_ctrl_c_at_a_terminal_reaches_the_command_once() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it in the background
        os.execv(EXEC[0], [*EXEC, sys.executable, "-c", RECORDS_SIGNALS])
    shown = b""

    def shows(text: bytes) -> bool:
        nonlocal shown
        shown += os.read(terminal, 4096)
        return text in shown

    wait_until(lambda: shows(b"ready"))
    os.kill(pid, signal.SIGSTOP)  # so that the command handles its own Ctrl-C first
    os.write(terminal, b"\x03")
    wait_until(lambda: shows(b"SIGINT"))
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: shows(b"SIGTERM"))
    assert shown.count(b"SIGINT") == 1
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 7
