"""Quantities, times and names as people read them: filters of the templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from zeus_service.api.savings_text import energy_unit, unit_of

_JOULES = {"TJ": 1e12, "GJ": 1e9, "MJ": 1e6, "kJ": 1e3, "J": 0.0}
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))
NONE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
SPARKLINE_WIDTH, SPARKLINE_HEIGHT, _MARGIN = 120, 28, 3
"""Pixels."""


def runs(count: int) -> str:
    """A number of runs: `1 run`, `1,200 runs`."""
    return f"{count:,} run{'' if count == 1 else 's'}"


def joules(value: float | None) -> str:
    """An energy or a cost with three significant digits: `12.3 kJ`."""
    return _with_unit(value, joule_unit)


def saved_energy(value: float | None) -> str:
    """What was saved with three significant digits, in the units of bills: `1.23 kWh`."""
    return _with_unit(value, energy_unit)


def joule_unit(value: float) -> tuple[float, str]:
    """The unit in which a value of this size is read best: its joules, and its name."""
    return unit_of(value, _JOULES)


def _with_unit(value: float | None, unit_for: Callable[[float], tuple[float, str]]) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    factor, unit = unit_for(value)
    return f"{significant(value / factor)} {unit}".replace("-", _MINUS)


def significant(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def number(value: float | None) -> str:
    """A metric with five significant digits."""
    return NONE if value is None else f"{value:.5g}"


def seconds(value: float | None) -> str:
    """A duration in its two largest units: `1 h 23 min`."""
    if value is None:
        return NONE
    if value < 60:
        return f"{significant(value)} s"
    rest = round(value)
    parts = []
    for span, unit in (*_SPANS, (1, "s")):
        count, rest = divmod(rest, span)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def percent(value: float) -> str:
    """A share with its sign: `-12 %`."""
    return f"{value:+.0%}".replace("%", " %").replace("-", _MINUS)


def iso(instant: float) -> str:
    """Unix seconds in the form of a `datetime` attribute."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="seconds")


def utc(instant: float) -> str:
    """Unix seconds as a date and time."""
    return f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%d %H:%M:%S} UTC"


def job_path(job_id: str) -> str:
    """The address of a job's page."""
    return f"/job/{quote(job_id, safe='')}"


def words(name: str | None) -> str:
    """A name of an outcome as words: `out of memory`."""
    return "running" if name is None else name.replace("_", " ")


def sparkline(values: Sequence[float]) -> str:
    """The `points` of an SVG polyline, from zero at the bottom to the highest value at the top."""
    scale = (SPARKLINE_HEIGHT - 2 * _MARGIN) / (max(values, default=0.0) or 1.0)
    step = (SPARKLINE_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)
    base = SPARKLINE_HEIGHT - _MARGIN
    return " ".join(
        f"{_MARGIN + index * step:.1f},{base - value * scale:.1f}"
        for index, value in enumerate(values)
    )


FILTERS: Mapping[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        *(runs, joules, saved_energy, significant, number, seconds, percent, iso, utc),
        *(job_path, words, sparkline),
    )
}
