"""An estimate of the energy of a run's process trees on this host, from their CPU time."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters.protocol import Reading

WATTS_PER_CORE = 3.5
"""Power of a busy logical core in watts: Cloud Carbon Footprint, Methodology, "AWS Average Max
Watts: 3.5" per vCPU (https://www.cloudcarbonfootprint.org/docs/methodology/)."""

_LOOKS = 3
_LISTS_CHILDREN = os.access(f"/proc/self/task/{os.getpid()}/children", os.R_OK)
"""Else psutil finds them by the parents of all processes: 1,000 of them take 20 ms."""


class CpuEstimateMeter:
    """Estimates the energy of some processes and their descendants; an `EnergyMeter`.

    Energy is CPU time times watts per core. It says how much one run takes against another on the
    same machine, not what a wattmeter would show: memory, fans and idle power are left out.

    Args:
        watts_per_core: Power of a busy logical core in watts.
        pids: Processes to count beside this one. A run's ranks on a host share its cores: one of
            them counts them all, whichever of them started which.

    Raises:
        ZeusConfigError: `watts_per_core` is not a positive number.
    """

    name: str = "cpu-estimate"
    is_estimate: bool = True

    def __init__(self, watts_per_core: float = WATTS_PER_CORE, pids: Sequence[int] = ()) -> None:
        if not (math.isfinite(watts_per_core) and watts_per_core > 0):
            raise ZeusConfigError(
                f"watts per core must be a positive number, not {watts_per_core}: write it as in "
                f'meter="cpu-estimate:{WATTS_PER_CORE}"'
            )
        self._watts_per_core = watts_per_core
        self._closed = False
        self._process = psutil.Process()
        self._roots = [self._process]
        with _explained():
            self._roots += [psutil.Process(pid) for pid in pids if pid != self._process.pid]
        self.devices: tuple[str, ...] = (_cores(),)
        self.device_model: str = cpu_model()
        self.max_power_w: float = watts_per_core * _usable_cores()
        self._first_s = self._last_s = self._tree_cpu_s()
        self._lost_s = 0.0

    def read(self) -> Reading:
        """Estimated energy of the processes since the meter was opened.

        Raises:
            ZeusMeterError: The processes cannot be read, or the meter is closed.
        """
        if self._closed:
            raise ZeusMeterError("the cpu-estimate meter is closed")
        cpu_s = self._cpu_s() - self._first_s
        return Reading(cpu_s * self._watts_per_core, time.monotonic())

    def close(self) -> None:
        """Nothing to give back."""
        self._closed = True

    def _cpu_s(self) -> float:
        """CPU time of the trees, the part of processes that have left it included."""
        cpu_s = self._tree_cpu_s() + self._lost_s
        if cpu_s < self._last_s:
            # Either a child ended between two lines of a look: looking again finds its time in its
            # parent's. Or the time is gone for good, with a process that nobody waited for.
            cpu_s = max(self._tree_cpu_s() for _ in range(_LOOKS)) + self._lost_s
            self._lost_s += max(0.0, self._last_s - cpu_s)
        self._last_s = max(cpu_s, self._last_s)
        return self._last_s

    def _tree_cpu_s(self) -> float:
        """CPU time of the processes, their live descendants and those that were waited for.

        Each process is read before its children, so that one that ends in between is missed rather
        than counted twice: this may be too little for a moment, never too much.
        """
        with _explained():
            processes = {root.pid: root for root in self._roots}
            for root in self._roots:
                with suppress(psutil.NoSuchProcess):
                    processes.update((each.pid, each) for each in _descendants(root))
            times = processes.pop(self._process.pid).cpu_times()
            # process_time has the resolution that cpu_times (10 ms) lacks.
            cpu_s = time.process_time() + times.children_user + times.children_system
            for process in processes.values():
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    cpu_s += times.user + times.system
                    cpu_s += times.children_user + times.children_system
        return float(cpu_s)


def _descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    """The processes that a process has started, and those that they have, each before its own."""
    if not _LISTS_CHILDREN:
        yield from process.children(recursive=True)
        return
    parents = [process.pid] if process.is_running() else []  # not another one with its id
    while parents:
        for pid in _children(parents.pop()):
            with suppress(psutil.NoSuchProcess):
                yield psutil.Process(pid)
                parents.append(pid)


def _children(pid: int) -> list[int]:
    """The process ids of what the threads of a process have started; none if it has ended.

    The kernel may leave some out while others end, see proc(5): a look may be too little then.
    """
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                found += map(int, (thread / "children").read_text().split())
    return found


@contextmanager
def _explained() -> Iterator[None]:
    """Turn psutil's errors into ones that say what to do."""
    try:
        yield
    except (psutil.Error, OSError) as error:
        raise ZeusMeterError(
            f"cannot read the CPU time of this process tree: {error}; it needs /proc, readable"
        ) from error


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> str:
    """What all processes that see each other share: the cores, of one container if in one."""
    with suppress(OSError):
        return f"cores of {Path('/proc/self/ns/pid').readlink()}"
    return "cores"


def _usable_cores() -> int:
    """Logical cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
