"""The estimate from CPU time, on real processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import psutil
import pytest
from waiting import LIMIT_S

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import cpu_estimate
from zeus_lightning.meters.cpu_estimate import CpuEstimateMeter, cpu_model

BURN = """
import sys, time
while time.process_time() < float(sys.argv[1]):
    pass
print("burnt", flush=True)
sys.stdin.read()
"""

# A process that works through a child of its own and dies without waiting for it.
BURN_IN_GRANDCHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BURN!r}, sys.argv[1]]).wait()
"""

# One that outlives its child and has waited for it.
BURN_IN_ENDED_GRANDCHILD = f"""
import subprocess, sys
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
subprocess.run([sys.executable, "-c", {BURN!r}, sys.argv[1]], **quiet)
print("burnt", flush=True)
sys.stdin.read()
"""


def burn(seconds: float) -> None:
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def start(script: str, seconds: float) -> subprocess.Popen[str]:
    """Start a process that burns so much CPU time in all and then waits for its input to end."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "burnt\n"
    return child


def cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def joules_of(work: Callable[[], object], meter: CpuEstimateMeter) -> float:
    before = meter.read()
    work()
    return (meter.read() - before).energy_j


def test_a_process_counts_once_whether_it_is_a_descendant_or_named_or_both() -> None:
    child = start(BURN, 0.5)
    try:
        tree, named = CpuEstimateMeter(10), CpuEstimateMeter(10, pids=[os.getpid(), child.pid])
        assert named._tree_cpu_s() == pytest.approx(tree._tree_cpu_s(), rel=0.05)
        # from within the child's tree this process is no descendant
        outside = "import sys; from zeus_lightning.meters.cpu_estimate import CpuEstimateMeter; "
        outside += "print(CpuEstimateMeter(10, pids=[int(sys.argv[1])])._tree_cpu_s())"
        command = [sys.executable, "-c", outside, str(child.pid)]
        seen_s = float(subprocess.check_output(command, text=True))
        assert seen_s > 0.5
    finally:
        child.communicate("")


def test_a_named_process_that_has_ended_is_an_error() -> None:
    child = start(BURN, 0.0)
    child.communicate("")
    with pytest.raises(ZeusMeterError, match="cannot read the CPU time"):
        CpuEstimateMeter(10, pids=[child.pid])


@pytest.mark.parametrize("lists_children", [True, False])  # as Linux does, and macOS does not
@pytest.mark.parametrize("script", [BURN, BURN_IN_GRANDCHILD, BURN_IN_ENDED_GRANDCHILD])
def test_a_descendant_counts_while_it_lives_and_after_it_has_ended(
    script: str, lists_children: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cpu_estimate._LISTS_CHILDREN
    monkeypatch.setattr(cpu_estimate, "_LISTS_CHILDREN", lists_children)
    meter = CpuEstimateMeter(10)
    before, own_s, ended_s = meter.read(), cpu_s(), cpu_s(resource.RUSAGE_CHILDREN)
    child = start(script, 0.4)
    own_alive_s = cpu_s() - own_s
    alive = meter.read()
    child.communicate()
    ended = meter.read()
    spent_s = cpu_s() - own_s + cpu_s(resource.RUSAGE_CHILDREN) - ended_s
    assert (alive - before).energy_j >= (0.38 + own_alive_s) * 10
    assert (ended - before).energy_j == pytest.approx(spent_s * 10, abs=1)


def test_the_child_of_another_thread_counts() -> None:
    meter = CpuEstimateMeter(10)
    done = threading.Event()
    started: Queue[subprocess.Popen[str]] = Queue()

    def start_and_stay() -> None:
        started.put(start(BURN, 0.3))
        done.wait()

    thread = threading.Thread(target=start_and_stay)
    thread.start()
    try:
        child = started.get(timeout=LIMIT_S)
        assert joules_of(lambda: None, meter) < 1
        assert meter.read().energy_j >= 0.28 * 10
        child.communicate("")
    finally:
        done.set()
        thread.join()


def test_it_goes_on_when_a_process_leaves_the_tree_with_its_time() -> None:
    meter = CpuEstimateMeter(10)
    child = start(BURN_IN_GRANDCHILD, 0.4)
    grandchild = psutil.Process(child.pid).children()[0]
    before = meter.read()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert grandchild.is_running()
    left = meter.read()
    assert left.energy_j >= before.energy_j
    own_s = cpu_s()
    joules = joules_of(lambda: burn(0.2), meter)
    assert joules == pytest.approx((cpu_s() - own_s) * 10, abs=1)
    child.communicate()


def test_max_power_is_that_of_the_cores_this_process_may_use() -> None:
    cores = os.sched_getaffinity(0)
    try:
        assert CpuEstimateMeter(4).max_power_w == 4 * len(cores)
        os.sched_setaffinity(0, {min(cores)})
        assert CpuEstimateMeter(4).max_power_w == 4
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize("watts", [0, -1, float("nan"), float("inf")])
def test_watts_per_core_must_be_positive(watts: float) -> None:
    with pytest.raises(ZeusConfigError, match=f"positive number, not {watts}; .*cpu-estimate:3.5"):
        CpuEstimateMeter(watts)


def test_the_cpu_model_is_the_one_the_kernel_names() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line for line in lines if line.startswith("model name")]
    assert all(name.endswith(f": {cpu_model()}") for name in names)
    assert cpu_model()
