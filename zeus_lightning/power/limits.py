"""A GPU's power limit, read and set through NVML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pynvml

from zeus_lightning.errors import ZeusPowerError

_NEEDED = (
    "setting power limits needs root or the capability CAP_SYS_ADMIN: run as root, in a container "
    'with `--cap-add SYS_ADMIN`, or pass on_no_permission="observe" to train without'
)
_NOT_CONTROLLED = (
    "its power cannot be controlled, as under MIG and on some laptops and virtual machines"
)
_WHY: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: ("no_permission", _NEEDED),
    pynvml.NVML_ERROR_NOT_SUPPORTED: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("gpu_lost", "see `dmesg`, and reset it or restart the host"),
}


class PowerLimit:
    """The power limit of one GPU. All figures in milliwatts are NVML's own.

    Args:
        gpu: The GPU's UUID, or its NVML index, which is that of `nvidia-smi`.

    Attributes:
        uuid: The GPU's UUID.
        model: Its model.
        driver: The driver's version.
        min_w: The lowest settable limit, rounded up to whole watts.
        max_w: The highest, rounded down.

    Raises:
        ZeusPowerError: There is no such GPU, or its power limit cannot be read or is fixed.
            `fields["why"]` of this and the methods' errors is `no_permission`, `no_power_control`,
            `gpu_lost` or `driver`.
    """

    def __init__(self, gpu: int | str) -> None:
        self.uuid = str(gpu)
        with self._explained("find"):
            pynvml.nvmlInit()
        self._closed = False
        try:
            with self._explained("find"):
                by_index = isinstance(gpu, int)
                find = (
                    pynvml.nvmlDeviceGetHandleByIndex
                    if by_index
                    else pynvml.nvmlDeviceGetHandleByUUID
                )
                self._handle = find(gpu)
                self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
                self.model = str(pynvml.nvmlDeviceGetName(self._handle))
                self.driver = str(pynvml.nvmlSystemGetDriverVersion())
            with self._explained("read the power limit of"):
                lowest_mw, highest_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(
                    self._handle
                )
            self.min_w = math.ceil(lowest_mw / 1000)
            self.max_w = int(highest_mw) // 1000
            self._check_range()
        except BaseException:
            self.close()
            raise

    def read_mw(self) -> int:
        """The limit that is set, by whomever.

        Raises:
            ZeusPowerError: It cannot be read.
        """
        with self._explained("read the power limit of"):
            return int(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def set_mw(self, limit_mw: int) -> None:
        """Set the limit.

        Raises:
            ZeusPowerError: It cannot be set.
        """
        with self._explained(f"set a power limit of {limit_mw / 1000:g} W on"):
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)

    def check_permission(self) -> None:
        """Check that limits can be set, by setting the present one again: nothing changes.

        Raises:
            ZeusPowerError: They cannot.
        """
        self.set_mw(self.read_mw())

    def close(self) -> None:
        """Give NVML back; closing again does nothing."""
        if not self._closed:
            self._closed = True
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _check_range(self) -> None:
        if self.min_w >= self.max_w:
            raise ZeusPowerError(
                f"the power limit of GPU {self.uuid} is fixed at {self.max_w} W",
                {"why": "no_power_control"},
            )

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turn NVML's errors into ones that say what failed and what to do."""
        try:
            yield
        except pynvml.NVMLError as error:
            why, remedy = _WHY.get(error.value, ("driver", "see whether `nvidia-smi` works here"))
            raise ZeusPowerError(
                f"cannot {doing} GPU {self.uuid}: {error}; {remedy}", {"why": why}
            ) from error
