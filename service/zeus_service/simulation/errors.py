"""The errors of a simulation."""

import click


class SimulationError(click.ClickException):
    """Raised when a simulation cannot be run; the message says why, where, and what to do.

    The command line prints the message of a `ClickException`, and nothing else.
    """


class PolicyGaveUp(SimulationError):
    """Raised at a start when the policy has no batch size left to try."""
