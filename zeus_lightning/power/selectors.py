"""Which power limit is the best of those measured: small pure functions over points.

The four criteria are those of the Zeus project (`zeus.optimizer.power_limit`, Apache-2.0), after
Zeus (You, Chung, Chowdhury, NSDI 2023), section 3, and Perseus (Chung et al., SOSP 2024) for the
wish to save energy without losing more than a little time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from zeus_lightning.errors import ZeusConfigError

SELECTORS = '"energy", "time", "zeus-cost", "max-slowdown:FACTOR" with a FACTOR of at least 1'


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """What one training batch takes at one power limit.

    Args:
        limit_w: The limit of each GPU.
        energy_j: Joules per batch, summed over the GPUs.
        time_s: Seconds per batch, of the slowest rank.
    """

    limit_w: int
    energy_j: float
    time_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorInputs:
    """What a selector may want to know of the run beside the points.

    Args:
        eta_knob: Weight of energy against time, in [0, 1]; `ZeusBSOCallback`'s where there is one.
        max_power_w: MaxPower: the sum over the GPUs of the highest settable limit.

    Raises:
        ZeusConfigError: One is out of range.
    """

    eta_knob: float = 0.5
    max_power_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.eta_knob <= 1:
            raise ZeusConfigError(f"eta_knob is {self.eta_knob!r}; it must be in [0, 1]")
        if not 0 < self.max_power_w < math.inf:
            raise ZeusConfigError(
                f"max_power_w is {self.max_power_w!r}; it must be positive and finite"
            )


@runtime_checkable
class Selector(Protocol):
    """Chooses among measured limits.

    A selector that has also `cost(point, inputs)`, the figure whose minimum it selects, lets
    `golden` search for it; without, every limit is measured.
    """

    @property
    def name(self) -> str:
        """What a profile remembers of it: selectors of one name choose alike."""

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """The `limit_w` of one of the points, of which there is at least one."""


@runtime_checkable
class CostSelector(Selector, Protocol):
    """A selector of the lowest cost, where the cost over the limit has one valley."""

    def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
        """What is to be lowest; never negative."""


@dataclass(frozen=True)
class Energy:
    """The lowest energy: argmin E."""

    name = "energy"

    def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
        """E: joules per batch."""
        del inputs
        return point.energy_j

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """The limit of the lowest energy."""
        return _lowest(self, points, inputs)


@dataclass(frozen=True)
class Time:
    """The lowest time: argmin T."""

    name = "time"

    def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
        """T: seconds per batch."""
        del inputs
        return point.time_s

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """The limit of the lowest time."""
        return _lowest(self, points, inputs)


@dataclass(frozen=True)
class ZeusCost:
    """The lowest cost: argmin eta E + (1 - eta) MaxPower T (Zeus, NSDI 2023, section 3).

    Args:
        eta_knob: Weight of energy against time, in [0, 1]; None: the run's
            (`SelectorInputs.eta_knob`).

    Raises:
        ZeusConfigError: `eta_knob` is out of range.
    """

    eta_knob: float | None = None

    def __post_init__(self) -> None:
        if self.eta_knob is not None and not 0 <= self.eta_knob <= 1:
            raise ZeusConfigError(f"eta_knob is {self.eta_knob!r}; it must be in [0, 1]")

    @property
    def name(self) -> str:
        """`zeus-cost`, with the selector's own eta where it has one."""
        return "zeus-cost" if self.eta_knob is None else f"zeus-cost:{self.eta_knob!r}"

    def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
        """Cost of a batch, in joules."""
        eta = inputs.eta_knob if self.eta_knob is None else self.eta_knob
        return eta * point.energy_j + (1 - eta) * inputs.max_power_w * point.time_s

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """The limit of the lowest cost."""
        return _lowest(self, points, inputs)


@dataclass(frozen=True)
class MaxSlowdown:
    """The lowest limit p with T(p) <= factor * T(the highest limit of the points).

    Args:
        factor: At least 1.

    Raises:
        ZeusConfigError: `factor` is below 1 or not finite.
    """

    factor: float

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ZeusConfigError(
                f"the factor of max-slowdown is {self.factor!r}; it must be at least 1 and finite"
            )

    @property
    def name(self) -> str:
        """`max-slowdown:FACTOR`."""
        return f"max-slowdown:{self.factor!r}"

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """The lowest limit that is fast enough; the highest of the points always is."""
        del inputs
        bound = self.factor * max(points, key=lambda point: point.limit_w).time_s
        return min(point.limit_w for point in points if point.time_s <= bound)


def parse_selector(selector: str | Selector) -> Selector:
    """The selector that a string names; a selector object is itself.

    Args:
        selector: "energy", "time", "zeus-cost", "max-slowdown:1.1" or a `Selector`.

    Raises:
        ZeusConfigError: It is neither.
    """
    if not isinstance(selector, str):
        if isinstance(selector, Selector):
            return selector
        raise ZeusConfigError(
            f"selector is {selector!r}, which has no name and select(points, inputs); "
            f"pass one of {SELECTORS}, or a selector object"
        )
    kind, colon, factor = selector.partition(":")
    simple: dict[str, type[Selector]] = {"energy": Energy, "time": Time, "zeus-cost": ZeusCost}
    if kind in simple and not colon:
        return simple[kind]()
    if kind == "max-slowdown":
        with contextlib.suppress(ValueError):
            return MaxSlowdown(float(factor))
    raise ZeusConfigError(f"selector is {selector!r}; it must be one of {SELECTORS}")


def _lowest(selector: CostSelector, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
    """The limit of the lowest cost; of equal ones the lowest limit."""
    return min(points, key=lambda point: (selector.cost(point, inputs), point.limit_w)).limit_w
