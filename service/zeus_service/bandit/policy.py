"""The interface of a policy: pure functions that fold a job's events into its state.

A policy object has no state of its own. A job's state is a small JSON value; the functions take one
and return the next, without a clock, a database or global random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from zeus_service.bandit.outcomes import Outcome
from zeus_service.bandit.spec import Hardware, JobSpec

State = dict[str, Any]
"""JSON value that belongs to one policy. It keeps the keys of its initial value, and grows with the
batch sizes, the kinds of hardware and the window, never with the number of trials."""

Why = Literal["explore", "exploit", "concurrent", "fallback", "control", "baseline"]
"""`concurrent`: another trial is exploring meanwhile. Three are the service's own: `fallback`, the
batch size of a trial that runs although every batch size has failed since; `control`, the default
batch size without early stopping, because the run asked for it; and `baseline`, the same to its own
end, because the job's target is not known yet."""

UNBOUNDED: frozenset[Why] = frozenset({"control", "baseline"})
"""Trials with the default batch size that are always granted, and never stopped early."""


class NoBatchSizeLeft(Exception):
    """Every batch size that the trial could use has failed."""


@dataclass(frozen=True)
class Choice:
    """A batch size, and why it was chosen."""

    batch_size: int
    why: Why


def always_granted(spec: JobSpec, *, control: bool = False) -> Choice | None:
    """The choice of a baseline or a control trial, which no policy makes."""
    if spec.target_metric is None:
        return Choice(spec.default_batch_size, "baseline")
    return Choice(spec.default_batch_size, "control") if control else None


@dataclass(frozen=True)
class Observation:
    """How a trial ended.

    Args:
        choice: The choice that the trial was started with.
        result: The outcome, if it is or counts as a result of the batch size; else None.
        cost: Cost of the trial in joules.
        epochs: Epochs trained, up to the last report; 0 without one.
        hardware: What it was trained on.
    """

    choice: Choice
    result: Outcome | None
    cost: float
    epochs: int
    hardware: Hardware


@dataclass(frozen=True)
class ArmEstimate:
    """A policy's estimate of one batch size, for people to read.

    Args:
        pulls: Number of results.
        mean: Expected cost in joules; None if unknown.
        spread: Standard deviation of that expectation in joules; None if unknown.
        status: `alive`, or the reason why it is not.
    """

    batch_size: int
    pulls: int
    mean: float | None
    spread: float | None
    status: str

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the expected cost, as of a log-normal; None if it is unknown."""
        if not self.mean or self.spread is None:
            return None
        variance = math.log1p((self.spread / self.mean) ** 2)
        median, factor = self.mean * math.exp(-variance / 2), math.exp(1.96 * math.sqrt(variance))
        return median / factor, median * factor


@runtime_checkable
class Policy(Protocol):
    """A way to choose batch sizes; see the module's docstring."""

    name: str

    def initial_state(self, spec: JobSpec) -> State:
        """The state of a job that has had no trial."""

    def next_batch_size(
        self,
        spec: JobSpec,
        state: State,
        hardware: Hardware,
        rng: np.random.Generator,
        usable: Collection[int],
    ) -> Choice:
        """Choose the batch size of a new trial.

        Args:
            spec: The job.
            state: Its state.
            hardware: What the trial trains on.
            rng: Seeded by the job and the number of the trial.
            usable: The batch sizes to choose from, at least one of the job's.

        Raises:
            NoBatchSizeLeft: None of `usable` is left to try.
        """

    def begin(self, spec: JobSpec, state: State, choice: Choice, hardware: Hardware) -> State:
        """Count a trial that was started with this choice on this hardware, or revived.

        No `cost_bound` changes before `observe`, on any hardware.
        """

    def observe(self, spec: JobSpec, state: State, observation: Observation) -> State:
        """Learn from a trial's end. Without a result, the state is as before its `begin`."""

    def cost_bound(self, spec: JobSpec, state: State, hardware: Hardware) -> float:
        """Cost in joules past which a run on this hardware is stopped; infinite without a bound."""

    def best_batch_size(self, spec: JobSpec, state: State, hardware: Hardware) -> int | None:
        """The batch size estimated to be the cheapest there; None before any has converged."""

    def describe(self, spec: JobSpec, state: State, hardware: Hardware) -> list[ArmEstimate]:
        """The estimates of all batch sizes on this hardware, ascending.

        None of them is `alive` once `next_batch_size` would raise `NoBatchSizeLeft` for all.
        """


def counted(counts: dict[str, int], batch_size: int, step: int) -> dict[str, int]:
    """Add `step` to one batch size's count of trials; counts of zero are left out."""
    changed = {**counts, str(batch_size): counts.get(str(batch_size), 0) + step}
    return {key: count for key, count in changed.items() if count > 0}


STATE_DECIMALS = 6


def reproducible(value: float) -> float:
    """Round a number that is stored in a state, so that every processor stores the same state.

    The last digits of linear algebra, logarithms and exponentials depend on the processor: a policy
    rounds them before it adds them up. They are log costs, probabilities and standard deviations,
    of order one or zero but for rounding errors: hence decimals, not significant digits. Six
    decimals of a log cost are six significant digits of the cost.

    Processors can still differ at a tie, with a probability of 5e-8 for each number: in 16,000
    numbers, OpenBLAS's kernels for three processors differed by 5e-14 on average, 2e-12 at most.
    """
    return round(value, STATE_DECIMALS)


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
        """Add a value."""
        count = self.count + 1
        delta = value - self.mean
        mean = self.mean + delta / count
        return Moments(count, mean, self.m2 + delta * (value - mean))
