"""However a run's process ends, nothing of it is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from zeus_lightning.recur import child as child_module
from zeus_lightning.recur.child import Child

STUBBORN = "trap '' TERM; sleep 1000 & echo $! ready; while true; do wait; done"
"""A shell, and a process that it starts, which both ignore SIGTERM."""


def started(folder: Path, script: str) -> tuple[Child, Path]:
    """A shell script that has printed `ready`."""
    log = folder / "log"
    child = Child(["bash", "-c", script], os.environ, log)
    wait_until(lambda: "ready" in log.read_text())
    return child, log


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_that_ignores_sigterm_is_killed_with_those_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, log = started(tmp_path, STUBBORN)
    child.end()
    assert child.poll() is None  # there is time for it to end in order
    monkeypatch.setattr(child_module, "GRACE_S", 0.0)
    child.kill()
    assert wait_until(child.poll) == -signal.SIGKILL
    wait_until(lambda: has_ended(int(log.read_text().split()[0])))


def test_what_a_shell_leaves_behind_is_ended_in_order(tmp_path: Path) -> None:
    run = "import signal, sys, time; signal.signal(15, lambda *_: print('in order') or sys.exit())"
    child, log = started(
        tmp_path, f"python3 -c \"{run}; print('ready', flush=True); time.sleep(1000)\"; true"
    )
    child.end()
    assert wait_until(child.poll) == -signal.SIGTERM  # the shell's own
    assert "in order" in log.read_text()


@pytest.mark.parametrize(
    ("end", "exit_code"), [("kill -9 $$", -signal.SIGKILL), ("bash -c 'kill -9 $$'; exit $?", 137)]
)
def test_ranks_that_a_killed_process_leaves_are_killed(
    tmp_path: Path, end: str, exit_code: int
) -> None:
    child, log = started(tmp_path, f"sleep 1000 & echo $! ready; {end}")
    assert wait_until(child.poll) == exit_code
    wait_until(lambda: has_ended(int(log.read_text().split()[0])))


def test_a_process_that_ends_by_itself_may_leave_one_behind(tmp_path: Path) -> None:
    child, log = started(tmp_path, "sleep 1000 & echo $! ready")
    wait_until(lambda: child.poll() == 0)
    left = psutil.Process(int(log.read_text().split()[0]))
    assert left.status() != psutil.STATUS_ZOMBIE
    left.kill()
