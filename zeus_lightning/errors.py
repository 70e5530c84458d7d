"""All errors that this package raises; their base class is `ZeusError`."""

from typing import Any


class ZeusError(Exception):
    """Base class of the errors of zeus-lightning.

    Args:
        message: What happened, with which value, and what to do next.
        fields: JSON values for programs, such as the configuration fields that differ.
    """

    def __init__(self, message: str, fields: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        """What happened, with which value, and what to do next."""
        self.fields = fields or {}
        """JSON values for programs; empty if there are none."""

    @property
    def fact(self) -> str:
        """What happened, without what to do next, which follows the first semicolon."""
        return self.message.partition("; ")[0]


class ZeusConfigError(ZeusError, ValueError):
    """An argument, or the training program around the callback, is invalid."""


class ZeusMeterError(ZeusError):
    """An energy meter cannot be opened or read; for a GPU meter, `fields["cause"]` may say why."""


class ZeusPowerError(ZeusError):
    """A GPU's power limit cannot be read, set or restored; `fields["cause"]` says why."""


class ZeusServiceError(ZeusError):
    """The service refused a request: status 4xx other than the cases below, or 500."""


class ZeusServiceUnavailable(ZeusServiceError):
    """The service does not answer, or answers with 502, 503 or 504."""


class ZeusJobConflict(ZeusServiceError):
    """The job id is registered with another configuration; `fields["differences"]` lists them."""


class ZeusTrialFailed(ZeusError):
    """The trial's batch size has failed; the message says whether the next run gets another."""
