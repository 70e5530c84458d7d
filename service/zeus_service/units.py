"""Quantities as people read them: `12.3 kJ`, `1.38 h`, `1,200 runs`."""

from __future__ import annotations

import math
from collections.abc import Mapping

JOULES = {"TJ": 1e12, "GJ": 1e9, "MJ": 1e6, "kJ": 1e3, "J": 1.0}
BILLED = {"MWh": 3.6e9, "kWh": 3.6e6, "Wh": 3.6e3, "J": 1.0}
DURATIONS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
NONE = "\N{EN DASH}"


def runs(count: int) -> str:
    """A number of runs: `1 run`, `1,200 runs`."""
    return f"{count:,} run{'' if count == 1 else 's'}"


def joules(value: float | None) -> str:
    """An energy or a cost: `12.3 kJ`."""
    return with_unit(value, JOULES)


def with_unit(value: float | None, units: Mapping[str, float]) -> str:
    """A value in the largest of these units that is not larger, or in the smallest."""
    if value is None or not math.isfinite(value):
        return NONE
    fitting = (unit for unit, size in units.items() if abs(value) >= size)
    unit = next(fitting, list(units)[-1])
    return f"{significant(value / units[unit])} {unit}"


def significant(value: float) -> str:
    """Three significant digits, without an exponent unless the value is very large or small."""
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
