"""Train recurring Lightning jobs for the least energy and time."""

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
from zeus_lightning.power_limit import ZeusPowerLimitCallback
from zeus_lightning.version import __version__

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
