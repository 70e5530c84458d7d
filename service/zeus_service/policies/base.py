"""What a policy is: a fold over what happened to a job.

A policy holds no state of its own. A job's state is a small JSON value; the functions take one and
return the next, touch no clock, no database and no global randomness.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from zeus_service.spec import JobSpec

State = dict[str, Any]
"""JSON value that belongs to one policy. It grows with the batch sizes and the window, never with
the number of trials."""

Why = Literal["explore", "exploit", "concurrent"]
Verdict = Literal["converged", "early_stopped", "not_converged", "diverged", "out_of_memory"]
NO_VERDICT = frozenset({"interrupted", "errored", "withdrawn", "lost"})
"""Ends of a trial that say nothing about its batch size."""


class NoBatchSizeLeft(Exception):
    """Every batch size of the job has failed."""


@dataclass(frozen=True)
class Choice:
    """A batch size, and why it was chosen."""

    batch_size: int
    why: Why


@dataclass(frozen=True)
class Observation:
    """How a trial ended.

    Args:
        choice: What the trial was started with.
        verdict: What the end says about the batch size; None: nothing.
        cost: Cost in joules spent when the trial ended.
    """

    choice: Choice
    verdict: Verdict | None
    cost: float


@dataclass(frozen=True)
class ArmEstimate:
    """What a policy believes of one batch size, for a person to check.

    Args:
        batch_size: The arm.
        pulls: Verdicts seen.
        mean: Expected cost in joules; None: not known.
        spread: Standard deviation of that expectation in joules; None: not known.
        status: `alive`, or why it is not.
    """

    batch_size: int
    pulls: int
    mean: float | None
    spread: float | None
    status: str


class Policy(Protocol):
    """How batch sizes are chosen. Implementations are stateless; see the module's text."""

    name: str

    def initial_state(self, spec: JobSpec) -> State:
        """The state of a job nothing has happened to."""

    def next_batch_size(self, spec: JobSpec, state: State, rng: np.random.Generator) -> Choice:
        """Choose a batch size for a trial that starts now.

        Raises:
            NoBatchSizeLeft: All have failed.
        """

    def begin(self, spec: JobSpec, state: State, choice: Choice) -> State:
        """A trial with this choice is running: it was started, or came back after it was lost.

        The `cost_bound` stays as it is: only an end moves it.
        """

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """A running trial ended. Without a verdict the beliefs are as before its `begin`."""

    def cost_bound(self, spec: JobSpec, state: State) -> float:
        """Cost in joules past which a run is to be stopped; infinite when there is no bound."""

    def best_batch_size(self, spec: JobSpec, state: State) -> int | None:
        """The cheapest batch size known so far; None while none is known."""

    def stage(self, spec: JobSpec, state: State) -> str:
        """Where the job is, in one or two words."""

    def describe(self, spec: JobSpec, state: State) -> list[ArmEstimate]:
        """The beliefs about every batch size, ascending."""


@dataclass(frozen=True)
class Moments:
    """Count, mean, and sum of squared deviations of a series, advanced one value at a time.

    Source: Welford, "Note on a method for calculating corrected sums of squares and products",
    Technometrics 4(3), 1962.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    def add(self, value: float) -> Moments:
        """The moments with one more value."""
        count = self.count + 1
        delta = value - self.mean
        mean = self.mean + delta / count
        return Moments(count, mean, self.m2 + delta * (value - mean))

    @property
    def variance(self) -> float:
        """Population variance; 0 for fewer than two values."""
        return self.m2 / self.count if self.count else 0.0

    @property
    def standard_error(self) -> float:
        """Standard deviation of the mean; infinite when there is no value."""
        return math.sqrt(self.variance / self.count) if self.count else math.inf
