"""AMD GPUs' energy and power limits, by AMD SMI (`pip install amdsmi`)."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import cache
from typing import Any

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters.nvml import Gpu, GpuMeter

AMD_PREFIX = "AMD-"
"""What the UUIDs of AMD GPUs begin with here, before AMD SMI's own."""

_CHECK_S = 0.5
_CHECK_FACTOR = 10.0  # both as in the Zeus project's zeus.device.gpu.amd

_NO_LIBRARY = (
    "install the amdsmi that matches ROCm (a container needs `--device=/dev/kfd --device=/dev/dri`)"
)
_WORKS = "check that `amd-smi monitor` works on this host"
_TO_SET = "run as root"


def torch_is_rocm() -> bool:
    """Return whether this build of torch is for AMD GPUs, which it calls "cuda" all the same."""
    import torch

    return torch.version.hip is not None


@cache
def load() -> Any:
    """Return the module `amdsmi`, started once for this process.

    Raises:
        ZeusMeterError: It is not installed, does not fit the library, or there is no driver.
    """
    try:
        with redirect_stdout(io.StringIO()):  # it prints what it does not find
            import amdsmi
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except Exception as error:  # also KeyError and AttributeError, for a library that it misses
        raise ZeusMeterError(f"cannot use AMD SMI: {error!r}; {_NO_LIBRARY}") from error
    return amdsmi


def open_gpu(gpu: int | str) -> Gpu:
    """Return a GPU.

    Args:
        gpu: An index of `amd-smi list`; a UUID of AMD SMI, with or without `AMD_PREFIX`; or
            `GPU-` and torch's UUID of a device.

    Raises:
        ZeusMeterError: There is no such GPU, or AMD SMI does not work.
    """
    return _AmdGpu(gpu)


def _find(gpu: int | str) -> Any:
    """Return AMD SMI's handle of a GPU."""
    amdsmi = load()
    with _explained(f"find GPU {gpu}"):
        handles = amdsmi.amdsmi_get_processor_handles()
        if isinstance(gpu, int):
            found = handles[gpu : gpu + 1]
        else:
            wanted = _names_of(gpu)
            found = [handle for handle in handles if wanted & _uuids(handle)]
    if not found:
        raise ZeusMeterError(
            f'AMD GPU {gpu} not found; name one by its index in `amd-smi list`, as in meter="amd:0"'
        )
    return found[0]


@contextmanager
def _explained(doing: str, permission: str = _WORKS) -> Iterator[None]:
    """Raise AMD SMI's errors with what failed and a remedy."""
    amdsmi = load()
    try:
        yield
    except amdsmi.AmdSmiException as error:
        statuses = amdsmi.amdsmi_wrapper
        code = error.get_error_code() if hasattr(error, "get_error_code") else None
        cause, remedy = {
            statuses.AMDSMI_STATUS_NO_PERM: ("no_permission", permission),
            statuses.AMDSMI_STATUS_NOT_SUPPORTED: ("no_power_control", "use another GPU"),
        }.get(code, ("driver", _WORKS))
        info = " ".join(str(error).split())
        raise ZeusMeterError(f"cannot {doing}: {info}; {remedy}", {"cause": cause}) from error


class AmdMeter(GpuMeter):
    """Counts the energy of AMD GPUs; an `EnergyMeter`.

    GPUs are named by index of `amd-smi list`, or UUID. Of the two chips of an MI250, only the first
    has figures, for both chips: the other one is an error.

    On some GPUs the energy counter is wrong (github.com/ROCm/amdsmi/issues/38). So opening takes
    half a second, in which the counter is compared with the power: if they differ by more than a
    factor of 10, a warning says so, and the power is sampled instead.

    It has been tried on AMD's Python library over a library made for tests, never on a GPU.
    """

    name: str = "amd"

    def _open(self, gpus: Sequence[int | str], closing: ExitStack) -> list[Gpu]:  # noqa: ARG002
        opened = [_AmdGpu(gpu) for gpu in gpus]
        for gpu in opened:
            gpu.start_counting()  # for the check; GpuMeter then starts it again, from zero
        counting = [gpu for gpu in opened if gpu.counts_energy]
        start_s, powers_w = time.monotonic(), [gpu.power_w() for gpu in counting]
        if counting:
            time.sleep(_CHECK_S)
        for gpu, power_w in zip(counting, powers_w, strict=True):
            gpu.check_counter(power_w, time.monotonic() - start_s)
        return list[Gpu](opened)


class _AmdGpu(Gpu):
    def __init__(self, gpu: int | str) -> None:
        self._amdsmi = load()
        self._handle = _find(gpu)
        self._trusts_counter = True
        with _explained(f"read GPU {gpu}"):
            model = self._amdsmi.amdsmi_get_gpu_asic_info(self._handle)["market_name"]
            uuid = AMD_PREFIX + str(self._amdsmi.amdsmi_get_gpu_device_uuid(self._handle))
        super().__init__(uuid, str(model))

    def check_counter(self, power_w: float, time_s: float) -> None:
        """Distrust the counter if it contradicts the power, in the time since it was started."""
        counted_w = self.energy_j() / time_s
        if not power_w or power_w / _CHECK_FACTOR < counted_w < power_w * _CHECK_FACTOR:
            return
        self._trusts_counter = False
        warnings.warn(
            f"zeus: the energy counter of {self} is wrong: it counts {counted_w:.4g} W while the "
            f"GPU draws {power_w:.4g} W; its power is sampled instead",
            stacklevel=2,
        )

    def counter_mj(self) -> int | None:
        if not self._trusts_counter:
            return None
        with _explained(f"read the energy of {self}"):
            try:
                found = self._amdsmi.amdsmi_get_energy_count(self._handle)
                return int(found["energy_accumulator"] * found["counter_resolution"] / 1e3)  # uJ
            except self._amdsmi.AmdSmiLibraryException as error:
                not_supported = self._amdsmi.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED
                if error.get_error_code() == not_supported:
                    return None
                raise

    def power_w(self) -> float:
        with _explained(f"read the power of {self}"):
            found = self._amdsmi.amdsmi_get_power_info(self._handle)
        for name in ("current_socket_power", "average_socket_power"):
            if isinstance(found[name], int) and 0 < found[name] < 0xFFFF:
                return float(found[name])
        return 0.0

    def works(self) -> bool:
        with suppress(self._amdsmi.AmdSmiException):
            return bool(self._amdsmi.amdsmi_get_gpu_activity(self._handle)["gfx_activity"] != 0)
        return True

    def max_power_w(self) -> float:
        found = self._power_cap_info()
        return float(found["max_power_cap"] or found["power_cap"]) / 1e6

    def range_mw(self) -> tuple[int, int]:
        found = self._power_cap_info()  # in microwatts
        return int(found["min_power_cap"]) // 1000, int(found["max_power_cap"]) // 1000

    def limit_mw(self) -> int:
        return int(self._power_cap_info()["power_cap"]) // 1000

    def default_limit_mw(self) -> int:
        return int(self._power_cap_info()["default_power_cap"]) // 1000

    def set_limit_mw(self, limit_mw: int) -> None:
        with _explained(f"set a power limit of {limit_mw / 1000:g} W on {self}", _TO_SET):
            self._amdsmi.amdsmi_set_power_cap(self._handle, 0, limit_mw * 1000)

    def _power_cap_info(self) -> Any:
        with _explained(f"read the power limit of {self}"):
            return self._amdsmi.amdsmi_get_power_cap_info(self._handle)


def _uuids(handle: Any) -> set[str]:
    """Return the names that a GPU has: of AMD SMI, and of HIP, which torch's is made from."""
    names = {str(load().amdsmi_get_gpu_device_uuid(handle))}
    with suppress(load().AmdSmiException):
        names.add(str(load().amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"]))
    return {name.lower() for name in names}


def _names_of(gpu: str) -> set[str]:
    """Return the names that a user or torch may mean; torch prints HIP's 16 letters as bytes."""
    name = gpu.removeprefix(AMD_PREFIX).lower()
    names = {name, name.removeprefix("gpu-")}
    with suppress(ValueError):
        names.add("gpu-" + bytes.fromhex(name.removeprefix("gpu-").replace("-", "")).decode())
    return names
