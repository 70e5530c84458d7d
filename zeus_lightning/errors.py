"""Every error this package raises, rooted at `ZeusError`."""

from __future__ import annotations

from typing import Any


class ZeusError(Exception):
    """Root of the errors raised by zeus-lightning.

    Args:
        message: What happened, with which value, and what to do next.
        fields: Plain JSON values for programs, such as the configuration fields that differ. They
            travel with the error from rank zero to the other ranks.
    """

    def __init__(self, message: str, fields: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields or {}


class ZeusConfigError(ZeusError, ValueError):
    """An argument, or the training program around the callback, cannot work as it is."""


class ZeusMeterError(ZeusError):
    """An energy meter cannot be opened or read."""


class ZeusPowerError(ZeusError):
    """A GPU's power limit cannot be read, set or put back; `fields["why"]` tells programs why."""


class ZeusServiceError(ZeusError):
    """The service refused a request: status 4xx other than the cases below, or 500."""


class ZeusServiceUnavailable(ZeusServiceError):
    """Nobody answers at the service's URL, or it answers 502, 503 or 504."""


class ZeusJobConflict(ZeusServiceError):
    """The job id is known with another configuration; `fields` names what differs."""


class ZeusNoBatchSizeLeft(ZeusServiceError):
    """Every batch size of the job has failed, so the service has none to offer."""


class ZeusTrialFailed(ZeusError):
    """The service gave this trial's batch size up; relaunching the job will try another one."""


def to_plain(error: ZeusError) -> tuple[str, str, dict[str, Any]]:
    """Turn an error into `(kind, message, fields)`, which any strategy can broadcast."""
    return type(error).__name__, error.message, error.fields


def from_plain(plain: tuple[str, str, dict[str, Any]]) -> ZeusError:
    """Rebuild the error that `to_plain` took apart.

    Raises:
        KeyError: The kind is not an error of this module.
    """
    kind, message, fields = plain
    cls: type[ZeusError] = _KINDS[kind]
    return cls(message, fields)


_KINDS: dict[str, type[ZeusError]] = {
    cls.__name__: cls
    for cls in (
        ZeusError,
        ZeusConfigError,
        ZeusMeterError,
        ZeusPowerError,
        ZeusServiceError,
        ZeusServiceUnavailable,
        ZeusJobConflict,
        ZeusNoBatchSizeLeft,
        ZeusTrialFailed,
    )
}
