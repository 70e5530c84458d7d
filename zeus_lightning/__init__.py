"""Train recurring Lightning jobs for the least energy and time."""

from typing import TYPE_CHECKING, Any

from zeus_lightning.bso import ZeusBSOCallback
from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusError,
    ZeusJobConflict,
    ZeusMeterError,
    ZeusNoBatchSizeLeft,
    ZeusPowerError,
    ZeusServiceError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.version import __version__

if TYPE_CHECKING:
    from zeus_lightning.power_limit import ZeusPowerLimitCallback

__all__ = [
    "ZeusBSOCallback",
    "ZeusConfigError",
    "ZeusError",
    "ZeusJobConflict",
    "ZeusMeterError",
    "ZeusNoBatchSizeLeft",
    "ZeusPowerError",
    "ZeusPowerLimitCallback",
    "ZeusServiceError",
    "ZeusServiceUnavailable",
    "ZeusTrialFailed",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import `ZeusPowerLimitCallback` when it is asked for: it is a third of the package."""
    if name != "ZeusPowerLimitCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zeus_lightning.power_limit import ZeusPowerLimitCallback

    return ZeusPowerLimitCallback
