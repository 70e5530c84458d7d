"""What a job has saved: sums over its eras, with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

from zeus_service.savings.expected import Expected
from zeus_service.savings.ledger import Era

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Estimate:
    """A number that is not known exactly, and its 95 % interval."""

    estimate: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: float, error: float) -> Self:
        """The estimate whose interval reaches `error` to both sides."""
        return cls(estimate, estimate - error, estimate + error)

    @property
    def error(self) -> float:
        """Half the width of the interval, if its lower end is not cut off."""
        return self.high - self.estimate

    def at_least(self, least: float) -> Estimate:
        """The estimate of a number that is known not to be smaller."""
        return replace(self, low=max(self.low, least))

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit, or priced; the factor is not negative."""
        return Estimate(self.estimate * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Amounts:
    """Estimates of joules, seconds, and the time of each GPU, summed."""

    energy_j: Estimate
    time_s: Estimate
    gpu_time_s: Estimate


def saved(eras: Sequence[Era]) -> Amounts | None:
    """What a job has saved over its eras; None if no era has an expectation.

    It is negative where more was spent than is expected of the default batch size.

    The errors of eras add up: an expectation that was carried over is wrong in the same direction
    as the one that it comes from.
    """
    parts = [_saved(era, era.expected) for era in eras if era.expected is not None]
    return reduce(_together, parts) if parts else None


def expected(era: Era) -> Amounts | None:
    """What one run of the default is expected to spend: what a run for nothing would save."""
    return saved([replace(era, recurrences=1, energy_j=0.0, time_s=0.0)])


def _saved(era: Era, expected: Expected) -> Amounts:
    n = era.recurrences
    energy = Estimate.of(n * expected.energy_j - era.energy_j, n * expected.energy_error_j)
    time = Estimate.of(n * expected.time_s - era.time_s, n * expected.time_error_s)
    # The default would have spent more than nothing.
    energy, time = energy.at_least(-era.energy_j), time.at_least(-era.time_s)
    return Amounts(energy, time, time.times(era.hardware.num_devices))


def _together(one: Amounts, other: Amounts) -> Amounts:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return Amounts(
        *(Estimate(a.estimate + b.estimate, a.low + b.low, a.high + b.high) for a, b in pairs)
    )
