"""Replays recurring jobs through the policies, with no server and no waiting."""

import click


class SimulationError(click.ClickException):
    """Raised when a simulation cannot be run; the message says why, where, and what to do.

    The command line prints the message of a `ClickException`, and nothing else.
    """
