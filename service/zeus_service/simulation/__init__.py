"""Replays recurring jobs through the policies, with no server and no waiting."""

import click
from pydantic import ValidationError


class SimulationError(click.ClickException):
    """Raised when a simulation cannot be run; the message says why, where, and what to do.

    The command line prints the message of a `ClickException`, and nothing else.
    """


def first_error(error: ValidationError) -> str:
    """The first invalid field, what is wrong with it, and its value."""
    wrong = error.errors()[0]
    name = ".".join(map(str, wrong["loc"]))
    return f"{name}: {wrong['msg']} ({wrong['input']!r:.60})"
