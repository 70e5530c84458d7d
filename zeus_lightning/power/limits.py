"""A GPU's power limit, read and set through NVML."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pynvml

from zeus_lightning.errors import ZeusPowerError
from zeus_lightning.meters.nvml import find_gpu, shut_down

_NEEDED = (
    "setting power limits needs root or the capability CAP_SYS_ADMIN: run as root, in a container "
    'with `--cap-add SYS_ADMIN`, or pass on_no_permission="observe" to train without setting limits'
)
_NOT_CONTROLLED = (
    "its power cannot be controlled, as under MIG and on some laptops and virtual machines"
)
_CAUSES: dict[int, tuple[str, str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: ("no_permission", _NEEDED),
    pynvml.NVML_ERROR_NOT_SUPPORTED: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: ("no_power_control", _NOT_CONTROLLED),
    pynvml.NVML_ERROR_GPU_IS_LOST: ("gpu_lost", "see `dmesg`, and reset it or restart the host"),
}


class PowerLimit:
    """The power limit of one GPU, which is named by its UUID or NVML index.

    Limits in milliwatts are exactly as NVML returns them. The lowest and highest settable limits,
    `min_w` and `max_w`, are whole watts within the range.

    Raises:
        ZeusPowerError: There is no such GPU, or its limit cannot be read or is fixed. The methods
            raise it too. `fields["cause"]` is `no_permission`, `no_power_control`, `gpu_lost` or
            `driver`.
    """

    def __init__(self, gpu: int | str) -> None:
        self.uuid = str(gpu)
        with ExitStack() as close_on_error:
            with self._explained("find"):
                pynvml.nvmlInit()
                close_on_error.callback(shut_down)
                self._handle = find_gpu(gpu)
                self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
                self.driver = str(pynvml.nvmlSystemGetDriverVersion())
            with self._explained("read the power limit of"):
                limits_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
            self.min_w, self.max_w = math.ceil(limits_mw[0] / 1000), int(limits_mw[1]) // 1000
            if self.min_w >= self.max_w:
                raise ZeusPowerError(
                    f"the power limit of GPU {self.uuid} is fixed at {self.max_w} W",
                    {"cause": "no_power_control"},
                )
            self._opened = close_on_error.pop_all()

    def read_mw(self) -> int:
        """Read the limit in force."""
        with self._explained("read the power limit of"):
            return int(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    def set_mw(self, limit_mw: int) -> None:
        """Set the limit."""
        with self._explained(f"set a power limit of {limit_mw / 1000:g} W on"):
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, limit_mw)

    def check_permission(self) -> None:
        """Check that limits can be set, by setting the one in force again: nothing changes."""
        self.set_mw(self.read_mw())

    def close(self) -> None:
        """Release NVML; a second call does nothing."""
        self._opened.close()

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Raise NVML's errors with what failed and what to do."""
        try:
            yield
        except pynvml.NVMLError as error:
            cause, remedy = _CAUSES.get(
                error.value, ("driver", "see whether `nvidia-smi` works here")
            )
            raise ZeusPowerError(
                f"cannot {doing} GPU {self.uuid}: {error}; {remedy}", {"cause": cause}
            ) from error
