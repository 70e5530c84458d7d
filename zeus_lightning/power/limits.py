"""A GPU's power limit, read through its driver, and set through that or Zeus's daemon."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property

from zeus_lightning.errors import ZeusPowerError
from zeus_lightning.zeusd import Zeusd, ZeusdError

_COMPARISONS = 2  # two GPUs that have spent the same energy by chance differ later


class GpuLimit(ABC):
    """The power limit of one GPU; a subclass speaks with its driver.

    Limits in milliwatts are exactly as the driver returns them. The lowest and highest settable
    limits, `min_w` and `max_w`, are whole watts within the range.

    Args:
        gpu: UUID, or the index by which its maker's tools know it.
        zeusd: The daemon that sets the limit. Default: the driver, which needs a permission.

    Raises:
        ZeusPowerError: There is no such GPU, or its limit cannot be read or is fixed. The methods
            raise it too. `fields["cause"]` is `no_permission`, `no_power_control`, `gpu_lost`,
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
        """Read the limit in force."""
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
        """Check that limits can be set, by setting the one in force again: nothing changes."""
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

        A container's NVML numbers its own GPUs and the daemon's those of the host, and a daemon at
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
