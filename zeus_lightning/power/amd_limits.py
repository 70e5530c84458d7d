"""The power limit of an AMD GPU, read through AMD SMI, and set through that or Zeus's daemon."""

from __future__ import annotations

from contextlib import ExitStack

from zeus_lightning.errors import ZeusMeterError
from zeus_lightning.meters import amd
from zeus_lightning.power.limits import GpuLimit

_NEEDED = (
    "setting power limits needs root: run as root, or let an administrator run zeusd, and set "
    'ZEUSD_SOCK_PATH; or pass on_no_permission="observe" to train without setting limits'
)


class AmdLimit(GpuLimit):
    """The power limit of one AMD GPU, which is named as for `AmdMeter`.

    AMD SMI counts in microwatts; the limits here are in milliwatts, as they are for all GPUs.
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
            statuses.AMDSMI_STATUS_NO_PERM: ("no_permission", _NEEDED),
            statuses.AMDSMI_STATUS_NOT_SUPPORTED: ("no_power_control", "it has no power limit"),
        }
        return (" ".join(str(error).split()), *causes.get(code, ("driver", works)))
