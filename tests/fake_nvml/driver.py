"""The tests' side of the fake driver: change what its GPUs do."""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char, c_double, c_int32, c_uint32
from pathlib import Path

from pynvml import (
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_SUPPORTED,
)

DRIVER_VERSION = "000.00.fake"

KINDS = (
    "find",
    "info",
    "energy",
    "power",
    "constraints",
    "limit",
    "default_limit",
    "enforced",
    "set_limit",
    "use",
)
_MAX_GPUS = 16


class _Gpu(ctypes.Structure):
    """`struct gpu` of fake_nvml.c, which documents the members."""

    _fields_ = (
        ("name", c_char * 96),
        ("uuid", c_char * 80),
        ("min_mw", c_uint32),
        ("max_mw", c_uint32),
        ("default_mw", c_uint32),
        ("limit_mw", c_uint32),
        ("major", c_int32),
        ("minor", c_int32),
        ("errors", c_int32 * len(KINDS)),
        ("idle_w", c_double),
        ("demand_w", c_double),
        ("load", c_double),
        ("energy_j", c_double),
        ("since_s", c_double),
        ("from_w", c_double),
        ("lag_s", c_double),
        ("shown_j", c_double),
        ("noise_j", c_double),
    )


class _State(ctypes.Structure):
    """`struct state` of fake_nvml.c."""

    _fields_ = (
        ("size", c_uint32),
        ("gpu_count", c_uint32),
        ("init_error", c_int32),
        ("gone", c_int32),
        ("frozen", c_int32),
        ("clock_s", c_double),
        ("refresh_s", c_double),
        ("driver_version", c_char * 80),
        ("gpus", _Gpu * _MAX_GPUS),
    )


def fail_elsewhere(state: Path, gpu: int, kind: str, error: int) -> None:
    """`FakeGpu.fail` in a process that knows of the driver by its state's file alone."""
    with state.open("r+b") as file:
        shared = _State.from_buffer(mmap.mmap(file.fileno(), 0))
    shared.gpus[gpu].errors[KINDS.index(kind)] = error


class FakeDriver:
    """A driver with some GPUs at rest, each 100 to 300 W and 50 W idle.

    Args:
        library: What `fake_nvml.library.build` returned.
        state: File of the state; overwritten.
        gpu_count: How many GPUs there are.
        refresh_s: How often their energy counters are brought up to date; 0: always.
    """

    def __init__(
        self, library: Path, state: Path, *, gpu_count: int = 2, refresh_s: float = 0.0
    ) -> None:
        self._path = state
        state.write_bytes(bytes(ctypes.sizeof(_State)))
        with state.open("r+b") as file:
            self._state = _State.from_buffer(mmap.mmap(file.fileno(), 0))
        self.variables = {
            "FAKE_NVML_STATE": str(state),
            "LD_LIBRARY_PATH": os.pathsep.join(
                [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            ),
        }
        self._state.size = ctypes.sizeof(_State)
        self.refresh_s = refresh_s
        self._state.driver_version = DRIVER_VERSION.encode()
        self.gpus: list[FakeGpu] = []
        for _ in range(gpu_count):
            self.add_gpu()

    @property
    def env(self) -> dict[str, str]:
        """This process's environment and what a child process needs to see the same driver."""
        return {**os.environ, **self.variables}

    def add_gpu(
        self,
        name: str = "Fake H100",
        *,
        min_w: float = 100,
        max_w: float = 300,
        default_w: float | None = None,
        idle_w: float = 50,
        demand_w: float | None = None,
        lag_s: float = 0.0,
        noise_j: float = 0.0,
        leak_w: float = 0.0,
        warm_s: float = 60.0,
    ) -> FakeGpu:
        """Add a GPU.

        Args:
            name: Its model.
            min_w: Lowest settable power limit.
            max_w: Highest one.
            default_w: The limit at first; None: `max_w`.
            idle_w: What it draws at no load.
            demand_w: What it would draw at full load without a limit; None: `max_w`.
            lag_s: Time constant with which its power follows a change of load or limit.
            noise_j: How much too much its counter may show at a refresh; the counter must refresh,
                and count more than that in between, or else it would fall.
            leak_w: What a warm GPU draws without computing more, so that its clock is lower.
            warm_s: Time constant with which it warms up from its first kernel on.
        """
        index = len(self.gpus)
        default_mw = round((max_w if default_w is None else default_w) * 1e3)
        with self.locked() as now_s:
            self._state.gpus[index] = _Gpu(
                name=name.encode(),
                uuid=f"GPU-{index:08x}-fa4e-fa4e-fa4e-fa4efa4efa4e".encode(),
                min_mw=round(min_w * 1e3),
                max_mw=round(max_w * 1e3),
                default_mw=default_mw,
                limit_mw=default_mw,
                major=9,
                idle_w=idle_w,
                demand_w=max_w if demand_w is None else demand_w,
                energy_j=1e6 * (index + 1),  # counted since the driver loaded, long ago
                shown_j=1e6 * (index + 1),
                since_s=now_s,
                from_w=idle_w,
                lag_s=lag_s,
                noise_j=noise_j,
            )
            self._state.gpu_count = index + 1
        self.gpus.append(FakeGpu(self, self._state.gpus[index], leak_w, warm_s))
        return self.gpus[index]

    def fail_init(self, error: int) -> None:
        """Let `nvmlInit` fail from now on."""
        with self.locked():
            self._state.init_error = error

    def unload(self) -> None:
        """Let the driver go away: every call fails from now on."""
        with self.locked():
            self._state.init_error = NVML_ERROR_DRIVER_NOT_LOADED
            self._state.gone = True

    def freeze(self) -> None:
        """Stop the driver's clock, which then moves by `advance` alone.

        It stops between two refreshes of the counters, at the same distance from them each time.
        """
        with self.locked() as now_s:
            self._state.clock_s = math.ceil(now_s) + 0.05
            self._state.frozen = True

    @property
    def frozen(self) -> bool:
        """Whether the clock moves by `advance` alone."""
        return bool(self._state.frozen)

    def advance(self, seconds: float) -> None:
        """Move the driver's clock on."""
        with self.locked():
            self._state.clock_s += seconds

    @property
    def refresh_s(self) -> float:
        """How often the energy counters are brought up to date; 0: always."""
        return float(self._state.refresh_s)

    @refresh_s.setter
    def refresh_s(self, seconds: float) -> None:
        self._state.refresh_s = seconds

    @contextmanager
    def locked(self) -> Iterator[float]:
        """Keep all others off the state; gives the time on the driver's clock."""
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                real_s = 0.0 if self._state.frozen else time.monotonic()
                yield real_s + self._state.clock_s
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)


class FakeGpu:
    """One GPU of a `FakeDriver`."""

    def __init__(
        self, driver: FakeDriver, state: _Gpu, leak_w: float = 0.0, warm_s: float = 60.0
    ) -> None:
        self._driver = driver
        self._state = state
        self._random = random.Random(0)
        self._leak_w, self._warm_s = leak_w, warm_s
        self._first_kernel_s: float | None = None

    @property
    def uuid(self) -> str:
        return str(self._state.uuid.decode())

    @property
    def name(self) -> str:
        return str(self._state.name.decode())

    @property
    def limit_mw(self) -> int:
        """The power limit in force."""
        return int(self._state.limit_mw)

    @limit_mw.setter
    def limit_mw(self, limit_mw: int) -> None:
        """Set it, as someone else's `nvidia-smi -pl` would."""
        with self._driver.locked() as now_s:
            self._settle(now_s)
            self._state.limit_mw = limit_mw

    @property
    def power_w(self) -> float:
        """What the GPU draws now."""
        with self._driver.locked() as now_s:
            return self._power_w(now_s)

    def energy_mj(self) -> float:
        """What the GPU has spent up to now: its counter, were it refreshed at this moment."""
        with self._driver.locked() as now_s:
            return self._energy_j(now_s) * 1e3

    def set_load(self, load: float) -> None:
        """Let the GPU work, between 0 (idle) and 1 (all it can within its power limit)."""
        with self._driver.locked() as now_s:
            self._settle(now_s)
            self._state.load = load

    def step_s(self, work_s: float) -> float:
        """How long a kernel takes under the limit in force, `work_s` seconds without one.

        The clock follows the cube root of the power that is left for it: dynamic power is about
        f * V**2, and the voltage V goes with the frequency f. So the energy of a step has one
        valley over the limit, and so has its cost. A GPU that warms up has less power left.
        """
        gpu = self._state
        dynamic_w = min(gpu.limit_mw / 1e3, gpu.demand_w) - gpu.idle_w - self._leaking_w()
        return float(work_s * ((gpu.demand_w - gpu.idle_w) / dynamic_w) ** (1 / 3))

    def run(self, work_s: float, noise: float = 0.0) -> None:
        """Run a kernel at full load: sleep, or on a frozen clock advance it.

        Args:
            work_s: Seconds it takes without a limit.
            noise: Standard deviation of its duration, relative; the same sequence in each test.
        """
        if self._state.load != 1:
            self.set_load(1)
        seconds = self.step_s(work_s) * max(0.1, self._random.gauss(1, noise))
        if self._driver.frozen:
            self._driver.advance(seconds)
        else:
            time.sleep(seconds)

    def _leaking_w(self) -> float:
        if not self._leak_w:
            return 0.0
        with self._driver.locked() as now_s:
            if self._first_kernel_s is None:
                self._first_kernel_s = now_s
            return self._leak_w * (1 - math.exp((self._first_kernel_s - now_s) / self._warm_s))

    def fail(self, kind: str, error: int) -> None:
        """Let calls of a kind (one of `KINDS`) return an error from now on; 0: work again."""
        with self._driver.locked():
            self._state.errors[KINDS.index(kind)] = error

    def lose(self) -> None:
        """Let the GPU fall off the bus: every call on it fails from now on."""
        for kind in KINDS:
            self.fail(kind, NVML_ERROR_GPU_IS_LOST)

    def refuse_limits(self) -> None:
        """Let only root set the power limit, and this process not be root."""
        self.fail("set_limit", NVML_ERROR_NO_PERMISSION)

    def fix_limit(self) -> None:
        """Let only the limit in force be settable."""
        with self._driver.locked():
            self._state.min_mw = self._state.max_mw = self._state.limit_mw

    def lack_power_control(self) -> None:
        """Make the power limit impossible to set, as MIG devices and some laptops do."""
        for kind in ("constraints", "set_limit"):
            self.fail(kind, NVML_ERROR_NOT_SUPPORTED)

    def reset_counter(self) -> None:
        """Let the energy counter start again from zero, as a reset GPU's does."""
        with self._driver.locked() as now_s:
            self._state.energy_j = self._state.shown_j = 0.0
            self._state.since_s = now_s

    def _settle(self, now_s: float) -> None:
        gpu = self._state
        gpu.shown_j = self._shown_j(now_s)
        gpu.from_w, gpu.energy_j = self._power_w(now_s), self._energy_j(now_s)
        gpu.since_s = now_s

    def _settled_w(self) -> float:
        gpu = self._state
        cap_w = min(gpu.limit_mw / 1e3, gpu.demand_w)
        return float(gpu.idle_w + gpu.load * max(cap_w - gpu.idle_w, 0.0))

    def _rest(self, at_s: float) -> float:
        gpu = self._state
        return math.exp(-(at_s - gpu.since_s) / gpu.lag_s) if gpu.lag_s > 0 else 0.0

    def _power_w(self, at_s: float) -> float:
        to_w = self._settled_w()
        return to_w + (float(self._state.from_w) - to_w) * self._rest(at_s)

    def _energy_j(self, at_s: float) -> float:
        gpu, to_w = self._state, self._settled_w()
        lagging_s = float(gpu.lag_s) * (1 - self._rest(at_s))
        return float(gpu.energy_j + to_w * (at_s - gpu.since_s) + (gpu.from_w - to_w) * lagging_s)

    def _shown_j(self, now_s: float) -> float:
        refresh_s = self._driver.refresh_s
        if refresh_s <= 0:
            return self._energy_j(now_s)
        refresh = math.floor(now_s / refresh_s)
        if refresh * refresh_s <= self._state.since_s:
            return float(self._state.shown_j)
        noise = math.sin(refresh * 12.9898) * 43758.5453
        error_j = self._state.noise_j * (noise - math.floor(noise))
        return self._energy_j(refresh * refresh_s) + error_j
