"""What was saved: sums over eras, and over jobs, with their errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zeus_service.bandit.spec import JobSpec
from zeus_service.savings.ledger import Era

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Estimate:
    """A number that is not known exactly.

    Args:
        mean: The estimate.
        error: Half the width of its 95 % interval.
    """

    mean: float
    error: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.error

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.error

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit, or priced; the factor is not negative."""
        return Estimate(self.mean * factor, self.error * factor)


@dataclass(frozen=True)
class Saved:
    """What was saved against the default batch size; negative where more was spent."""

    energy_j: Estimate
    time_s: Estimate
    cost: Estimate


def saved(spec: JobSpec, max_power_w: float, eras: Iterable[Era]) -> Saved | None:
    """What a job has saved over its eras; None if no era has an expectation.

    For the trials of a day or a week, give each era with their sums alone.

    Args:
        spec: The job.
        max_power_w: MaxPower of its hardware, in watts.
        eras: In the order of their numbers. Those without an expectation are left out.
    """
    known = [(era, era.expected) for era in eras if era.expected is not None]
    if not known:
        return None
    chained = [each.carried for _, each in known]
    energy = Estimate(
        sum(era.recurrences * each.energy_j - era.energy_j for era, each in known),
        _error([era.recurrences * each.energy_error_j for era, each in known], chained),
    )
    time = Estimate(
        sum(era.recurrences * each.time_s - era.time_s for era, each in known),
        _error([era.recurrences * each.time_error_s for era, each in known], chained),
    )
    cost = Estimate(
        sum(
            era.recurrences * spec.cost(each.energy_j, each.time_s, max_power_w) - era.cost
            for era, each in known
        ),
        spec.cost(energy.error, time.error, max_power_w),
    )
    return Saved(energy, time, cost)


def total(parts: Iterable[Saved]) -> Saved:
    """The sum of several jobs' savings, whose errors are independent."""
    every = list(parts)
    energy, time, cost = (
        Estimate(math.fsum(each.mean for each in column), math.hypot(*(e.error for e in column)))
        for column in (
            [part.energy_j for part in every],
            [part.time_s for part in every],
            [part.cost for part in every],
        )
    )
    return Saved(energy, time, cost)


def _error(errors: Sequence[float], chained: Sequence[bool]) -> float:
    """The error of a sum over eras.

    An expectation that was carried over is wrong in the same direction as that of the era before:
    their errors add up. Others are independent.
    """
    groups: list[float] = []
    for error, with_before in zip(errors, chained, strict=True):
        groups.append(groups.pop() + error if with_before and groups else error)
    return math.hypot(*groups)
