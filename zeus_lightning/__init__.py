"""Train recurring Lightning jobs for the least energy and time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from zeus_lightning.bso import ZeusBSOCallback
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


_CALLBACKS = {"ZeusBSOCallback": "bso", "ZeusPowerLimitCallback": "power_limit"}


def __getattr__(name: str) -> Any:
    """Import a callback when it is first used: the command line works without torch."""
    if name in _CALLBACKS:
        return getattr(import_module(f"zeus_lightning.{_CALLBACKS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
