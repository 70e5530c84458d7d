"""A GPU's power limit, read through NVML or AMD SMI, and set through it or Zeus's daemon."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

import pynvml

from zeus_lightning.errors import ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import amd, nvml
from zeus_lightning.zeusd import Zeusd, ZeusdError

_COMPARISONS = 2  # two GPUs that have spent the same energy by chance differ later
_ZEUSD = "or let an administrator run zeusd, and set ZEUSD_SOCK_PATH"
_NVML_CAUSES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "no_permission",
        "setting power limits needs root or CAP_SYS_ADMIN (in a container: `--cap-add SYS_ADMIN`); "
        f"run as root, {_ZEUSD}",
    ),
    **dict.fromkeys(
        (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        (
            "no_power_control",
            "its power cannot be controlled, as under MIG and on some laptops and virtual machines",
        ),
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("gpu_lost", "see `dmesg`, and reset it or restart the host"),
}


class GpuLimit(ABC):
    """The power limit of one GPU; a subclass speaks with its driver.

    Limits in milliwatts are exactly as the driver returns them. The lowest and highest settable
    limits, `min_w` and `max_w`, are whole watts within the range.

    Args:
        gpu: UUID, or the index by which its maker's tools know it.
        zeusd: The daemon that sets the limit. Default: the driver, which needs a permission.

    Raises:
        ZeusPowerError: There is no such GPU, or its limit cannot be read or is fixed. The methods
            also raise it. `fields["cause"]` is `no_permission`, `no_power_control`, `gpu_lost`,
            `driver` or `zeusd`.
    """

    uuid: str
    driver: str

    def __init__(self, gpu: int | str, zeusd: Zeusd | None = None) -> None:
        self.uuid = str(gpu)
        self.zeusd = zeusd
        with ExitStack() as close_on_error:
            with self._explained("find"):
                self._find(gpu, close_on_error)
            with self._explained("read the power limit of"):
                limits_mw = self._range_mw()
            self.min_w, self.max_w = math.ceil(limits_mw[0] / 1000), int(limits_mw[1]) // 1000
            if self.min_w >= self.max_w:
                raise ZeusPowerError(
                    f"the power limit of GPU {self.uuid} is fixed at {self.max_w} W",
                    {"cause": "no_power_control"},
                )
            self._opened = close_on_error.pop_all()

    def read_mw(self) -> int:
        """Read the current limit."""
        with self._explained("read the power limit of"):
            return self._limit_mw()

    def set_mw(self, limit_mw: int) -> None:
        """Set the limit."""
        with self._explained(f"set a power limit of {limit_mw / 1000:g} W on"):
            if self.zeusd is None:
                self._set_mw(limit_mw)
            else:
                self.zeusd.set_power_limit(self._zeusd_id, limit_mw)

    def check_permission(self) -> None:
        """Check that limits can be set, by setting the current one again: nothing changes."""
        self.set_mw(self.read_mw())

    def close(self) -> None:
        """Release the driver's library; a second call does nothing."""
        self._opened.close()

    @abstractmethod
    def _find(self, gpu: int | str, closing: ExitStack) -> None:
        """Find the GPU, and set `uuid` and `driver`, its version."""

    @abstractmethod
    def _range_mw(self) -> tuple[int, int]: ...

    @abstractmethod
    def _limit_mw(self) -> int: ...

    @abstractmethod
    def _set_mw(self, limit_mw: int) -> None: ...

    @abstractmethod
    def _energy_mj(self) -> int: ...

    @abstractmethod
    def _explain(self, error: Exception) -> tuple[str, str, str] | None:
        """Return the driver's words, the cause and the remedy; None if the error is another's."""

    @cached_property
    def _zeusd_id(self) -> int:
        """Index by which the daemon knows this GPU.

        A container's NVML numbers its own GPUs, the daemon's NVML the host's GPUs, and a daemon at
        `host:port` may serve another host. Their energy counters tell the GPUs apart.
        """
        assert self.zeusd is not None
        found = self.zeusd.gpu_ids()
        for _ in range(_COMPARISONS):
            found = [gpu_id for gpu_id in found if self._has_the_energy_of(gpu_id)]
        if len(found) != 1:
            raise ZeusdError(
                f"{self.zeusd} has {len(found) or 'no'} GPUs with this one's energy counter: see "
                "whether it runs on this host"
            )
        return found[0]

    def _has_the_energy_of(self, zeusd_id: int) -> bool:
        assert self.zeusd is not None
        try:
            before_mj = self._energy_mj()
            energy_mj = self.zeusd.gpu_energy_mj(zeusd_id)
            after_mj = self._energy_mj()
        except ZeusdError as error:
            if error.cause == "no_permission":
                raise
            return False  # a GPU without a counter
        return before_mj <= energy_mj <= after_mj

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Raise the driver's errors with what failed and what to do."""
        try:
            yield
        except ZeusdError as error:
            raise ZeusPowerError(
                f"cannot {doing} GPU {self.uuid}: {error}", {"cause": error.cause}
            ) from error
        except Exception as error:
            if (explained := self._explain(error)) is None:
                raise
            words, cause, remedy = explained
            raise ZeusPowerError(
                f"cannot {doing} GPU {self.uuid}: {words}; {remedy}", {"cause": cause}
            ) from error


class NvmlLimit(GpuLimit):
    """The power limit of one NVIDIA GPU, named by UUID or NVML index."""

    def _find(self, gpu: int | str, closing: ExitStack) -> None:
        pynvml.nvmlInit()
        closing.callback(nvml.shut_down)
        self._handle = nvml.find_gpu(gpu)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())

    def _range_mw(self) -> tuple[int, int]:
        lowest, highest = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        return int(lowest), int(highest)

    def _limit_mw(self) -> int:
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def _set_mw(self, limit_mw: int) -> None:
        pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)

    def _energy_mj(self) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def _explain(self, error: Exception) -> tuple[str, str, str] | None:
        if not isinstance(error, pynvml.NVMLError):
            return None
        works = "see whether `nvidia-smi` works here"
        return (str(error), *_NVML_CAUSES.get(error.value, ("driver", works)))


class AmdLimit(GpuLimit):
    """The power limit of one AMD GPU, named as for `AmdMeter`.

    AMD SMI counts in microwatts; limits here are in milliwatts, as for all GPUs.
    """

    def _find(self, gpu: int | str, closing: ExitStack) -> None:  # noqa: ARG002
        self._amdsmi = amd.load()
        self._handle = amd.find_gpu(gpu)
        self.uuid = amd.uuid_of(self._handle)
        self.driver = str(self._amdsmi.amdsmi_get_gpu_driver_info(self._handle)["driver_version"])

    def _range_mw(self) -> tuple[int, int]:
        found = self._amdsmi.amdsmi_get_power_cap_info(self._handle)
        return int(found["min_power_cap"]) // 1000, int(found["max_power_cap"]) // 1000

    def _limit_mw(self) -> int:
        return int(self._amdsmi.amdsmi_get_power_cap_info(self._handle)["power_cap"]) // 1000

    def _set_mw(self, limit_mw: int) -> None:
        self._amdsmi.amdsmi_set_power_cap(self._handle, 0, limit_mw * 1000)

    def _energy_mj(self) -> int:
        return amd.energy_mj(self._handle)

    def _explain(self, error: Exception) -> tuple[str, str, str] | None:
        works = "see whether `amd-smi monitor` works here"
        if isinstance(error, ZeusMeterError):
            return error.message, "driver", works
        if not isinstance(error, amd.load().AmdSmiException):
            return None
        statuses = self._amdsmi.amdsmi_wrapper
        code = error.get_error_code() if hasattr(error, "get_error_code") else None
        causes = {
            statuses.AMDSMI_STATUS_NO_PERM: (
                "no_permission",
                f"setting power limits needs root: run as root, {_ZEUSD}",
            ),
            statuses.AMDSMI_STATUS_NOT_SUPPORTED: ("no_power_control", "it has no power limit"),
        }
        return (" ".join(str(error).split()), *causes.get(code, ("driver", works)))


def open_limit(gpu: str, zeusd: Zeusd | None = None) -> GpuLimit:
    """Open the limit of an NVIDIA or AMD GPU by the UUID that its meter gives it."""
    return (AmdLimit if gpu.startswith(amd.AMD_PREFIX) else NvmlLimit)(gpu, zeusd)
