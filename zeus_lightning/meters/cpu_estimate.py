"""An estimate of the energy of a run's process trees on this host, from their CPU time."""

import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from zeus_lightning.errors import ZeusConfigError, ZeusMeterError
from zeus_lightning.meters import Reading

WATTS_PER_CORE = 3.5
"""Power of a busy logical core in watts: Cloud Carbon Footprint, Methodology, "AWS Average Max
Watts: 3.5" per vCPU (https://www.cloudcarbonfootprint.org/docs/methodology/)."""

_RETRIES = 3
_LISTS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()
_ENDED = FileNotFoundError, ProcessLookupError  # while it is read


def assumed_max_power_w(device: str) -> float:
    """Return MaxPower in watts of a host's chip that has no power limit, and warn of it."""
    from lightning.pytorch.utilities import rank_zero_warn

    max_power_w = (os.cpu_count() or 1) * WATTS_PER_CORE
    rank_zero_warn(
        f"zeus: {device} reported no power limit; costs assume a MaxPower of {max_power_w:g} W "
        f"({WATTS_PER_CORE} W per logical core of the host)",
        stacklevel=7,  # three frames belong to rank_zero_warn
    )
    return max_power_w


class CpuEstimateMeter:
    """Estimates the energy of some processes and their descendants; an `EnergyMeter`.

    Energy is CPU time times watts per core: it leaves out memory, fans and idle power, and serves
    to compare runs on the same machine.

    Args:
        watts_per_core: Power of a busy logical core in watts.
        pids: Processes to count besides this one: one rank counts all ranks of a run on its host.

    Raises:
        ZeusConfigError: `watts_per_core` is not a positive number.
    """

    name: str = "cpu-estimate"
    is_estimate: bool = True

    def __init__(self, watts_per_core: float = WATTS_PER_CORE, pids: Sequence[int] = ()) -> None:
        if not (math.isfinite(watts_per_core) and watts_per_core > 0):
            raise ZeusConfigError(
                f"watts per core must be a positive number, not {watts_per_core}; use "
                f'meter="cpu-estimate:{WATTS_PER_CORE}", for example'
            )
        self._watts_per_core = watts_per_core
        self._process = psutil.Process()
        self._roots = [self._process]
        with _explained():
            self._roots += [psutil.Process(pid) for pid in pids if pid != self._process.pid]
        self.devices: tuple[str, ...] = (_cores(),)
        self.device_model: str = cpu_model()
        self.max_power_w: float = watts_per_core * usable_cores()
        self._first_s = self._last_s = self._tree_cpu_s()
        self._lost_s = 0.0

    def read(self) -> Reading:
        """Return the estimated energy of the processes since the meter was opened."""
        cpu_s = self._cpu_s() - self._first_s
        return Reading(cpu_s * self._watts_per_core, time.monotonic())

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _cpu_s(self) -> float:
        """Return the CPU time of the process trees, and of processes that left them."""
        cpu_s = self._tree_cpu_s() + self._lost_s
        if cpu_s < self._last_s:
            # A child may have ended while the tree was read: another reading finds its time in its
            # parent's. Or its time is lost, since no process waited for it.
            cpu_s = max(self._tree_cpu_s() for _ in range(_RETRIES)) + self._lost_s
            self._lost_s += max(0.0, self._last_s - cpu_s)
        self._last_s = max(cpu_s, self._last_s)
        return self._last_s

    def _tree_cpu_s(self) -> float:
        """Return the CPU time of the processes, their live descendants and those waited for.

        Each process is read before its children: a child that ends in between is missed rather than
        counted twice, so the result may briefly be too small, but never too large.
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
    """List the live descendants of a process, each parent before its children.

    Where Linux lists a thread's children, only they are read: `psutil` would read all processes of
    the host, once for each rank.
    """
    if not _LISTS_CHILDREN:
        yield from process.children(recursive=True)
    elif process.is_running():  # its id may be another process's now
        with suppress(*_ENDED):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                for child in _children(thread):
                    yield child
                    yield from _descendants(child)


def _children(thread: Path) -> Iterator[psutil.Process]:
    """The processes that a thread has started."""
    with suppress(*_ENDED):
        for pid in (thread / "children").read_text().split():
            with suppress(psutil.NoSuchProcess):
                yield psutil.Process(int(pid))


@contextmanager
def _explained() -> Iterator[None]:
    """Raise psutil's errors with a remedy."""
    try:
        yield
    except (psutil.Error, OSError) as error:
        raise ZeusMeterError(
            f"cannot read the CPU time of this process tree: {error}; /proc must be readable"
        ) from error


def usable_cores() -> int:
    """Return the number of logical cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cpu_model() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> str:
    """Name the cores by the process namespace, so that each container has a name of its own."""
    with suppress(OSError):
        return f"cores of {Path('/proc/self/ns/pid').readlink()}"
    return "cores"
