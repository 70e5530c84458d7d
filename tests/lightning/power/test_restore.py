"""A limit set for a while: restored however the process ends, and never by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_nvml import FakeDriver, FakeGpu
from forked import in_forked_child
from gpu_programs import DriversClock, GpuNet, fit, power

from zeus_lightning import ZeusPowerError
from zeus_lightning.power.limits import GpuLimit
from zeus_lightning.power.restore import (
    TemporaryLimit,
    check_settable,
    records_folder,
    restore_all,
)

EXITING = """
def set_and_fail():
    from zeus_lightning.power.limits import GpuLimit
    from zeus_lightning.power.restore import TemporaryLimit
    TemporaryLimit(GpuLimit(0)).set_w(125)
    raise ValueError("of the user")

if __name__ == "__main__":
"""
SPAWNING = """
    import multiprocessing
    process = multiprocessing.get_context("spawn").Process(target=set_and_fail)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


def setter(*limits_w: int) -> int:
    """Pid of a process that has set these limits of GPU 0 in turn, and waits for ever."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            temporary = TemporaryLimit(GpuLimit(0))
            for limit_w in limits_w:
                temporary.set_w(limit_w)
            os.write(sender, b"set")
            signal.pause()
        finally:
            os._exit(1)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        assert pipe.read(3) == b"set"
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def killed(fake_gpus: FakeDriver) -> int:
    """Pid of a process that set GPU 0 from 250 to 125 W and was killed."""
    fake_gpus.gpus[0].limit_mw = 250_000
    pid = setter(175, 125)
    kill(pid)
    assert fake_gpus.gpus[0].limit_mw == 125_000
    return pid


@pytest.fixture
def limit(fake_gpus: FakeDriver) -> Iterator[GpuLimit]:
    fake_gpus.gpus[0].limit_mw = 234_567  # no whole watts
    limit = GpuLimit(0)
    yield limit
    limit.close()


def records() -> list[str]:
    return [path.stem for path in records_folder().glob("*")]


@pytest.mark.parametrize("main", ["    set_and_fail()", SPAWNING])
def test_it_is_restored_when_the_interpreter_exits_also_one_that_multiprocessing_spawned(
    fake_gpus: FakeDriver, tmp_path: Path, main: str
) -> None:
    fake_gpus.gpus[0].limit_mw = 250_000
    script = tmp_path / "script.py"
    script.write_text(EXITING + main)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"ValueError: of the user" in done.stderr
    assert fake_gpus.gpus[0].limit_mw == 250_000
    assert records() == []


def test_after_a_sigkill_a_control_trial_runs_at_the_limit_found_before(
    killed: int, gpu: FakeGpu, gpu_meter: DriversClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_CONTROL", "1")
    gpu.limit_mw = 125_000  # as the killed process left it; the fixture `gpu` has set 250 W
    net = GpuNet(gpu)
    with pytest.warns(UserWarning, match=f"restored to 250 W, its value before process {killed} "):
        fit(power(meter=gpu_meter), net)
    assert set(net.limits_w) == {250}
    assert records() == []


def test_killed_between_writing_and_setting_the_limit_before_counts_as_set(
    fake_gpus: FakeDriver, killed: int
) -> None:
    fake_gpus.gpus[0].limit_mw = 175_000  # as if the second had not been set yet
    ((_, finished, _),) = restore_all()
    assert finished
    assert fake_gpus.gpus[0].limit_mw == 250_000


def test_what_a_restarted_driver_or_an_administrator_set_since_the_kill_stays(
    fake_gpus: FakeDriver, killed: int
) -> None:
    fake_gpus.gpus[0].limit_mw = 300_000
    ((_, finished, message),) = restore_all()
    assert finished
    assert "so it was not restored to 250 W" in message
    assert fake_gpus.gpus[0].limit_mw == 300_000
    assert records() == []


def test_a_second_process_is_refused_with_the_firsts_pid(
    fake_gpus: FakeDriver, limit: GpuLimit
) -> None:
    first = setter(125)
    try:
        with pytest.raises(
            ZeusPowerError, match=rf"process {first} .* controls the power limit"
        ) as raised:
            TemporaryLimit(limit)
        assert raised.value.fields == {"cause": "in_use"}
        with pytest.raises(ZeusPowerError, match=f"process {first} "):
            check_settable(limit)
        ((_, finished, message),) = restore_all()
        assert finished  # by itself, later
        assert f"process {first} " in message
        assert fake_gpus.gpus[0].limit_mw == 125_000
        other = GpuLimit(1)
        TemporaryLimit(other).restore()
        other.close()
    finally:
        kill(first)
    TemporaryLimit(limit).restore()


def test_a_second_user_in_the_same_process_is_refused_and_told_so(limit: GpuLimit) -> None:
    first, again = TemporaryLimit(limit), GpuLimit(0)
    with pytest.raises(ZeusPowerError, match="use one search per process"):
        TemporaryLimit(again)
    again.close()
    first.restore()


def test_a_living_process_with_the_pid_of_a_killed_one_refuses_nobody(
    fake_gpus: FakeDriver, killed: int
) -> None:
    path = records_folder() / f"{fake_gpus.gpus[0].uuid}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "pid": os.getpid()}))
    with closing(GpuLimit(0)) as limit:
        temporary = TemporaryLimit(limit)
        assert fake_gpus.gpus[0].limit_mw == 250_000
        temporary.restore()


def test_checking_whether_a_limit_is_available_restores_nothing_and_leaves_no_file(
    fake_gpus: FakeDriver, killed: int
) -> None:
    with closing(GpuLimit(0)) as limit:
        assert check_settable(limit)
    assert fake_gpus.gpus[0].limit_mw == 125_000
    with closing(GpuLimit(1)) as other:
        assert not check_settable(other)
        fake_gpus.gpus[1].refuse_limits()
        with pytest.raises(ZeusPowerError, match="CAP_SYS_ADMIN"):
            check_settable(other)
    assert records() == [fake_gpus.gpus[0].uuid]


def test_a_fork_neither_keeps_the_lock_nor_restores_the_limit(
    fake_gpus: FakeDriver, limit: GpuLimit
) -> None:
    temporary = TemporaryLimit(limit)
    temporary.set_w(125)

    def in_the_fork() -> None:
        assert temporary.restore() == ""

    in_forked_child(in_the_fork)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        assert fake_gpus.gpus[0].limit_mw == 125_000
        temporary.restore()
        TemporaryLimit(limit).restore()  # though the fork lives
    finally:
        kill(pid)


def test_a_broken_file_is_no_record(fake_gpus: FakeDriver, limit: GpuLimit) -> None:
    records_folder().mkdir(parents=True)
    path = records_folder() / f"{fake_gpus.gpus[0].uuid}.json"
    for text in ("", "{", "[]", '{"uuid": 1}', "\0" * 1024):
        path.write_text(text)
        temporary = TemporaryLimit(limit)
        assert temporary.recovered == ""
        temporary.set_w(125)
        temporary.restore()
        assert fake_gpus.gpus[0].limit_mw == 234_567
        path.write_text(text)
        ((_, finished, message),) = restore_all()
        assert finished
        assert "was removed" in message
        assert records() == []


def test_a_gpu_that_is_lost_keeps_its_file_for_later(
    fake_gpus: FakeDriver, limit: GpuLimit
) -> None:
    gpu = fake_gpus.gpus[0]
    temporary = TemporaryLimit(limit)
    temporary.set_w(125)
    gpu.lose()
    with pytest.raises(ZeusPowerError, match="GPU is lost"):
        temporary.restore()
    ((_, finished, message),) = restore_all()
    assert not finished
    assert "GPU is lost" in message
    assert message.endswith(f"delete {records_folder() / gpu.uuid}.json")
    for kind in ("find", "info", "constraints", "limit", "set_limit"):
        gpu.fail(kind, 0)
    ((_, finished, _),) = restore_all()
    assert finished
    assert gpu.limit_mw == 234_567


def test_however_often_the_driver_refuses_a_limit_the_one_set_before_still_counts_as_set(
    fake_gpus: FakeDriver, limit: GpuLimit
) -> None:
    temporary = TemporaryLimit(limit)
    temporary.set_w(200)
    for refused_w in (999, 998, 997):
        with pytest.raises(ZeusPowerError):
            temporary.set_w(refused_w)
    assert temporary.restore() == ""
    assert fake_gpus.gpus[0].limit_mw == 234_567
