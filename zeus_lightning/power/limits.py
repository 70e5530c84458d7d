"""A GPU's power limit, read through its driver, and set through it or Zeus's daemon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

from zeus_lightning.errors import ZeusMeterError, ZeusPowerError
from zeus_lightning.meters import amd, nvml
from zeus_lightning.zeusd import Zeusd

_COMPARISONS = 2  # two GPUs that have spent the same energy by chance differ later


class GpuLimit:
    """The power limit of one NVIDIA or AMD GPU.

    Limits in milliwatts are exactly as the driver returns them. The lowest and highest settable
    limits, `min_w` and `max_w`, are whole watts within the range.

    Args:
        gpu: The UUID that its meter gives it, or an NVML index.
        zeusd: The daemon that sets the limit. Default: the driver, which needs a permission.

    Raises:
        ZeusPowerError: There is no such GPU, or its limit cannot be read or is fixed. The methods
            also raise it. `fields["cause"]` is `no_permission`, `no_power_control`, `gpu_lost`,
            `driver` or `zeusd`.
    """

    def __init__(self, gpu: int | str, zeusd: Zeusd | None = None) -> None:
        self.zeusd = zeusd
        with ExitStack() as close_on_error:
            with _power_errors():
                is_amd = str(gpu).startswith(amd.AMD_PREFIX)
                self._gpu = amd.open_gpu(gpu) if is_amd else nvml.open_gpu(gpu, close_on_error)
                self.uuid = self._gpu.uuid
                lowest_mw, highest_mw = self._gpu.range_mw()
            self.min_w, self.max_w = math.ceil(lowest_mw / 1000), highest_mw // 1000
            if self.min_w >= self.max_w:
                raise ZeusPowerError(
                    f"the power limit of {self.uuid} is fixed at {self.max_w} W",
                    {"cause": "no_power_control"},
                )
            self._opened = close_on_error.pop_all()

    def read_mw(self) -> int:
        """Read the current limit."""
        with _power_errors():
            return self._gpu.limit_mw()

    def set_mw(self, limit_mw: int) -> None:
        """Set the limit."""
        with _power_errors():
            if self.zeusd is None:
                self._gpu.set_limit_mw(limit_mw)
            else:
                self.zeusd.set_power_limit(self._zeusd_id, limit_mw)

    def check_permission(self) -> None:
        """Check that limits can be set, by setting the current one again: nothing changes."""
        self.set_mw(self.read_mw())

    def close(self) -> None:
        """Release the driver's library; a second call does nothing."""
        self._opened.close()

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
            raise ZeusPowerError(
                f"{self.zeusd} has {len(found) or 'no'} GPUs whose energy counter matches this "
                "GPU's; check that it runs on this host",
                {"cause": "zeusd"},
            )
        return found[0]

    def _has_the_energy_of(self, zeusd_id: int) -> bool:
        assert self.zeusd is not None
        try:
            before_mj = self._gpu.counter_mj()
            energy_mj = self.zeusd.gpu_energy_mj(zeusd_id)
            after_mj = self._gpu.counter_mj()
        except ZeusPowerError as error:
            if error.fields["cause"] == "no_permission":
                raise
            return False  # the daemon's GPU has no counter
        if before_mj is None or after_mj is None:
            return False
        return before_mj <= energy_mj <= after_mj


@contextmanager
def _power_errors() -> Iterator[None]:
    """Raise errors of a GPU as errors of its power limit."""
    try:
        yield
    except ZeusMeterError as error:
        raise ZeusPowerError(error.message, {"cause": "driver"} | error.fields) from error
