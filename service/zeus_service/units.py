"""Quantities as people read them: `12.3 kWh`, `1.38 h`, `1,200 runs`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

ENERGIES = {"MWh": 3.6e9, "kWh": 3.6e6, "Wh": 3.6e3, "J": 1.0}
"""Units of bills, in joules."""
DURATIONS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


def runs(count: int) -> str:
    """A number of runs: `1 run`, `1,200 runs`."""
    return f"{count:,} run{'' if count == 1 else 's'}"


def energy(value: float | None, units: Mapping[str, float] = ENERGIES) -> str:
    """Joules, of an energy or a cost, in the unit of these that fits: `12.3 kWh`."""
    return with_unit(value, units)


def shared_unit(values: Iterable[float | None]) -> dict[str, float]:
    """The unit that fits the largest of some joules, in which all can be compared; its size."""
    return dict([fitting_unit(max(filter(None, values), default=0.0), ENERGIES)])


def range_with_unit(low: float, high: float, units: Mapping[str, float] = ENERGIES) -> str:
    """A range in the unit that fits its larger end; an end below a thousandth of that is 0."""
    larger = max(low, high, key=abs)
    unit, size = fitting_unit(larger, units)
    shown = [0.0 if abs(end) < abs(larger) / 1000 else end / size for end in (low, high)]
    return f"{significant(shown[0])} to {significant(shown[1])} {unit}"


def with_unit(value: float | None, units: Mapping[str, float]) -> str:
    """A value in the largest of these units that is not larger, or in the smallest."""
    if value is None or not math.isfinite(value):
        return NONE
    unit, size = fitting_unit(value, units)
    return f"{significant(value / size)} {unit}"


def fitting_unit(value: float, units: Mapping[str, float]) -> tuple[str, float]:
    """The largest of these units that is not larger than a value, or the smallest; its size."""
    fitting = (pair for pair in units.items() if abs(value) >= pair[1])
    return next(fitting, list(units.items())[-1])


def significant(value: float) -> str:
    """Three significant digits, without an exponent unless the value is very large or small."""
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return with_minus(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return with_minus(f"{value:,.{digits}f}")


def with_minus(number: str) -> str:
    """A number with a minus sign, not a hyphen, in front."""
    return MINUS + number[1:] if number.startswith("-") else number
