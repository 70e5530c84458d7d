"""What is wrong with what a simulation was given."""

from __future__ import annotations


class SimulationError(Exception):
    """A simulation that cannot be run; the message says what is wrong, where, and what to do."""
