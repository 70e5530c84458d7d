"""Selectors: choose the best power limit from the measured ones, by pure functions.

The four criteria are the Zeus project's (`zeus.optimizer.power_limit`, Apache-2.0), after
Zeus (You, Chung, Chowdhury, NSDI 2023), section 3, and, for a bounded slowdown, Perseus (Chung et
al., SOSP 2024).
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from zeus_lightning.errors import ZeusConfigError

SELECTORS = '"energy", "time", "zeus-cost", "max-slowdown:FACTOR" with a FACTOR of at least 1'


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """Energy and time of one training batch at one power limit.

    Args:
        limit_w: The limit of each GPU.
        energy_j: Joules per batch, summed over the GPUs.
        time_s: Seconds per batch, of the slowest rank.
    """

    limit_w: int
    energy_j: float
    time_s: float

    @property
    def power_w(self) -> float:
        """Mean power of all GPUs."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorInputs:
    """What a selector may need besides the points.

    Args:
        eta_knob: Weight of energy against time, in [0, 1]; `ZeusBSOCallback`'s if there is one.
        max_power_w: MaxPower: the sum over the GPUs of the highest settable limit.
    """

    eta_knob: float = 0.5
    max_power_w: float


@runtime_checkable
class Selector(Protocol):
    """Chooses one of the measured limits; for a selector of your own, all limits are measured."""

    @property
    def name(self) -> str:
        """Name stored in profiles: selectors of the same name make the same choice."""

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """Return the `limit_w` of one of the points, of which there is at least one."""


@dataclass(frozen=True)
class ZeusCost:
    """Select the lowest cost: argmin eta E + (1 - eta) MaxPower T (Zeus, NSDI 2023, section 3).

    An `eta_knob` of 1 makes it the selector `energy`, and 0 makes it `time`.

    Args:
        eta_knob: Weight of energy against time, in [0, 1]. Default: the run's.
    """

    eta_knob: float | None = None

    def __post_init__(self) -> None:
        if self.eta_knob is not None and not 0 <= self.eta_knob <= 1:
            raise ZeusConfigError(f"eta_knob is {self.eta_knob!r}; it must be in [0, 1]")

    @property
    def name(self) -> str:
        """`zeus-cost`, and the selector's own eta if it has one: `energy` for 1, `time` for 0."""
        if self.eta_knob is None:
            return "zeus-cost"
        return {1.0: "energy", 0.0: "time"}.get(self.eta_knob, f"zeus-cost:{self.eta_knob!r}")

    def cost(self, point: PowerPoint, inputs: SelectorInputs) -> float:
        """Return the cost of a batch, in joules."""
        eta = inputs.eta_knob if self.eta_knob is None else self.eta_knob
        return eta * point.energy_j + (1 - eta) * inputs.max_power_w * point.time_s

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:
        """Return the limit of the lowest cost, the lowest limit among equal costs."""
        return min(points, key=lambda point: (self.cost(point, inputs), point.limit_w)).limit_w


@dataclass(frozen=True)
class MaxSlowdown:
    """Select the lowest limit p with T(p) <= factor * T(the highest limit of the points)."""

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

    def select(self, points: Sequence[PowerPoint], inputs: SelectorInputs) -> int:  # noqa: ARG002
        """Return the lowest limit that is fast enough; the highest one always is."""
        bound = self.factor * max(points, key=lambda point: point.limit_w).time_s
        return min(point.limit_w for point in points if point.time_s <= bound)


def parse_selector(selector: str | Selector) -> Selector:
    """Return the selector that a string names; a selector object is returned as it is."""
    if not isinstance(selector, str):
        if isinstance(selector, Selector):
            return selector
        raise ZeusConfigError(
            f"selector is a {type(selector).__name__}, which lacks a name or select(points, "
            f"inputs); pass one of {SELECTORS}, or a selector object"
        )
    etas = {"energy": 1.0, "time": 0.0, "zeus-cost": None}
    if selector in etas:
        return ZeusCost(etas[selector])
    kind, _, factor = selector.partition(":")
    if kind == "max-slowdown":
        with contextlib.suppress(ValueError):
            return MaxSlowdown(float(factor))
    raise ZeusConfigError(f"selector is {selector!r}; it must be one of {SELECTORS}")
