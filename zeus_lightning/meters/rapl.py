"""The energy of CPU packages, through Linux's powercap files (RAPL: Intel, and AMD since Zen).

`Sampler` reads their counters often enough; a GPU without a counter has its power read by it.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import Reading
from zeus_lightning.meters.cpu_estimate import assumed_max_power_w, cpu_model

POWERCAP = Path("/sys/class/powercap")

_STILL_CPU_S = 5.0  # of this process: a package that runs it draws power

_NOT_READABLE = (
    "only root may read it (CVE-2020-8694); run "
    "`sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj` (permanent with a udev rule)"
)


class Sampler:
    """Calls `sample` at once, then every `interval_s` seconds in a daemon thread until `stop`.

    Args:
        sample: Takes a sample and returns the energy in joules up to it. Never called by two
            threads at once; raises nothing but `ZeusMeterError`.
        interval_s: Seconds between two samples.
        name: The thread's name.
    """

    def __init__(self, sample: Callable[[], float], interval_s: float, name: str) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._lock = Lock()
        self._stopped = Event()
        self._error: ZeusMeterError | None = None
        self._pid = os.getpid()
        self._sample()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def read(self) -> float:
        """Take a sample now, and return the joules up to it; raise the error of an earlier one."""
        if os.getpid() != self._pid:
            raise ZeusMeterError(
                f"the energy meter was opened in process {self._pid} and its sampling thread does "
                f"not run in this one ({os.getpid()}); open the meter after the fork"
            )
        with self._lock:
            if self._error is not None:
                raise ZeusMeterError(self._error.message, self._error.fields) from self._error
            return self._sample()

    def stop(self) -> None:
        """Stop the thread; a driver call that hangs is waited for only briefly."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            with self._lock:
                try:
                    self._sample()
                except ZeusMeterError as error:
                    self._error = error
                    return


class RaplMeter:
    """Counts the energy of all CPU packages of the host; an `EnergyMeter`.

    Only package domains count: they include their sub-domains (core, uncore), `psys` includes
    them, and `intel-rapl-mmio` repeats them. Memory is left out unless `dram` is set; other
    programs on the host are included.

    MaxPower is the rated power of the long-term constraint, else its present limit. AMD's packages
    have neither: then it is the host's logical cores times `WATTS_PER_CORE`, with a warning.

    Args:
        root: Directory of the powercap class. Default: `/sys/class/powercap`.
        sample_interval_s: Seconds between two readings of the counters, which wrap around after as
            little as 65 kJ: 6.5 kW over 10 s.
        dram: Whether to also count the packages' memory, where it has a counter.

    Raises:
        ZeusMeterError: The host has no package counters, or they cannot be read.
    """

    name: str = "rapl"
    is_estimate: bool = False

    def __init__(
        self,
        root: Path | None = None,
        *,
        sample_interval_s: float = 10.0,
        dram: bool = False,
    ) -> None:
        root = root or POWERCAP
        self._packages = _find_packages(root, dram=dram)
        self.devices: tuple[str, ...] = tuple(package.name for package in self._packages)
        self.device_model: str = cpu_model()
        self.max_power_w: float = self._max_power_w()
        self._sampler = Sampler(self._energy_j, sample_interval_s, name="zeus-rapl")

    def read(self) -> Reading:
        """Return the energy of the packages since the meter was opened."""
        return Reading(self._sampler.read(), time.monotonic())

    def close(self) -> None:
        """Stop reading the counters."""
        self._sampler.stop()

    def _energy_j(self) -> float:
        return sum(package.energy_j() for package in self._packages)

    def _max_power_w(self) -> float:
        limits_w = {package.name: package.max_power_w() for package in self._packages}
        if all(limit_w for name, limit_w in limits_w.items() if not name.startswith("dram")):
            return sum(limits_w.values())  # memory's limit may be unknown
        return assumed_max_power_w(" and ".join(self.devices))


class _Package:
    """A CPU package, or its memory: a directory of powercap files.

    Its counter wraps around, at most once between two readings.

    Args:
        directory: The files.
        package: The name of the package whose memory it is.
    """

    def __init__(self, directory: Path, package: str = "") -> None:
        self._directory = directory
        with _explained(directory):
            name = (directory / "name").read_text().strip()
            self.name = f"{name} of {package}" if package else name
            self._last_uj = self._number("energy_uj")
            self._range_uj = self._number("max_energy_range_uj")
            if self._range_uj <= 0:
                raise ValueError(f"max_energy_range_uj is {self._range_uj}")
        self._total_uj = 0
        self._moved_cpu_s = time.process_time()

    def energy_j(self) -> float:
        with _explained(self._directory):
            now_uj = self._number("energy_uj")
        grown_uj = (now_uj - self._last_uj) % self._range_uj
        self._last_uj = now_uj
        self._total_uj += grown_uj
        cpu_s = time.process_time()
        if grown_uj:
            self._moved_cpu_s = cpu_s
        elif cpu_s - self._moved_cpu_s > _STILL_CPU_S:
            raise ZeusMeterError(
                f"the energy counter of {self.name} has not moved while this process computed "
                f"for {cpu_s - self._moved_cpu_s:.0f} s, as on some virtual machines; use "
                'meter="cpu-estimate"'
            )
        return self._total_uj / 1e6

    def max_power_w(self) -> float:
        """Return the rated power, else the current limit, else 0."""
        for label in sorted(self._directory.glob("constraint_*_name")):
            constraint = label.name.removesuffix("_name")
            for file in (f"{constraint}_max_power_uw", f"{constraint}_power_limit_uw"):
                with suppress(OSError, ValueError):
                    power_uw = self._number(file)
                    if power_uw > 0 and label.read_text().strip() == "long_term":
                        return power_uw / 1e6
        return 0.0

    def _number(self, file: str) -> int:
        return int((self._directory / file).read_text())


def _find_packages(root: Path, *, dram: bool) -> list[_Package]:
    with _explained(root):
        directories = [
            directory
            for directory in (root.iterdir() if root.is_dir() else ())
            if re.fullmatch(r"intel-rapl:\d+", directory.name)
            and (directory / "name").read_text().startswith("package-")
        ]
    if not directories:
        raise ZeusMeterError(
            f"no CPU energy counter under {root} (RAPL needs bare-metal Linux on Intel or AMD with "
            'intel_rapl_msr); use meter="cpu-estimate"'
        )
    directories.sort(key=lambda directory: int(directory.name.partition(":")[2]))
    found = []
    for directory in directories:
        found.append(package := _Package(directory))
        with _explained(directory):
            found += [
                _Package(zone, package.name)
                for zone in sorted(directory.glob(f"{directory.name}:*"))
                if dram and (zone / "name").read_text().strip() == "dram"
            ]
    return found


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise failures to read powercap files with a remedy."""
    try:
        yield
    except PermissionError as error:
        raise ZeusMeterError(f"cannot read {error.filename or path}: {_NOT_READABLE}") from error
    except (OSError, ValueError) as error:
        raise ZeusMeterError(
            f"cannot read the energy of {path}: {error}; check that the kernel module "
            "intel_rapl_msr is loaded"
        ) from error
