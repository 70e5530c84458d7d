"""Train recurring Lightning jobs for the least energy and time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zeus_lightning.errors import (
    ZeusConfigError,
    ZeusError,
    ZeusJobConflict,
    ZeusMeterError,
    ZeusPowerError,
    ZeusServiceError,
    ZeusServiceUnavailable,
    ZeusTrialFailed,
)
from zeus_lightning.version import __version__

if TYPE_CHECKING:
    from zeus_lightning.bso import ZeusBSOCallback
    from zeus_lightning.energy_callback import ZeusEnergyCallback
    from zeus_lightning.fit_again import fit
    from zeus_lightning.power_limit import ZeusPowerLimitCallback
    from zeus_lightning.power_loop import PowerLimit
    from zeus_lightning.recurrence import Recurrence

__all__ = [
    "PowerLimit",
    "Recurrence",
    "ZeusBSOCallback",
    "ZeusConfigError",
    "ZeusEnergyCallback",
    "ZeusError",
    "ZeusJobConflict",
    "ZeusMeterError",
    "ZeusPowerError",
    "ZeusPowerLimitCallback",
    "ZeusServiceError",
    "ZeusServiceUnavailable",
    "ZeusTrialFailed",
    "__version__",
    "fit",
]


_LAZY = {
    "PowerLimit": "power_loop",
    "Recurrence": "recurrence",
    "ZeusBSOCallback": "bso",
    "ZeusEnergyCallback": "energy_callback",
    "ZeusPowerLimitCallback": "power_limit",
    "fit": "fit_again",
}


def __getattr__(name: str) -> Any:
    """Import what uses Lightning when it is first used: the command line works without torch."""
    if name in _LAZY:
        return getattr(import_module(f"zeus_lightning.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
