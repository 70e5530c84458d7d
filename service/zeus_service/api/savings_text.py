"""What was saved, as text for people."""

from zeus_service.api.messages import Estimate, JobSavings, SavedAmounts, SavedOnDay, Savings

COLUMNS = ("recurrences", "energy saved", "95 % interval", "time saved", "95 % interval")

_ENERGY = {"MWh": 3.6e9, "kWh": 3.6e6, "Wh": 3.6e3, "J": 0.0}
_TIME = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 0.0}


def summary(found: JobSavings | Savings) -> str:
    """What a job or all jobs have saved, in a few sentences."""
    if isinstance(found, JobSavings):
        text = _saved(found.saved, f"job {found.job_id!r} has")
        if found.saved is None:
            text = (
                f"job {found.job_id!r}: what its default batch size, {found.default_batch_size}, "
                "would spend is unknown until a run with it has converged"
            )
        return text + (f"; energy is estimated by {found.meter}" if found.estimated else "")
    known = found.jobs - found.unknown
    text = _saved(found.saved, "1 job has" if known == 1 else f"{known} jobs have")
    if found.unknown:
        text += f"; of {found.unknown} more it is unknown"
    if found.estimated:
        (estimated,) = (part for part in found.by_meter if part.estimated)
        text += f"; energy is an estimate for {estimated.jobs}"
    return text


def row(day: SavedOnDay) -> tuple[str, int, str, str, str, str]:
    """The cells of a day or a week: its date and `COLUMNS`."""
    energy, time = (
        (_amount(each.estimate, units), _interval(each, units))
        for each, units in ((day.saved.energy_j, _ENERGY), (day.saved.time_s, _TIME))
    )
    return day.day, day.recurrences, *energy, *time


def energy_unit(joules: float) -> tuple[float, str]:
    """The unit that suits these joules: its size in joules, and its name."""
    return unit_of(joules, _ENERGY)


def _saved(saved: SavedAmounts | None, who: str) -> str:
    if saved is None:
        return ""
    parts = [_with_interval(saved.energy_j, _ENERGY), _with_interval(saved.time_s, _TIME)]
    if saved.money is not None:
        parts.append(f"{_with_interval(saved.money)} of money")
    if saved.co2e_kg is not None:
        parts.append(f"{_with_interval(saved.co2e_kg)} kg CO2e")
    return f"{who} saved {', '.join(parts)}, against the default batch size"


def _with_interval(value: Estimate, units: dict[str, float] | None = None) -> str:
    return f"{_amount(value.estimate, units)} ({_interval(value, units)})"


def _interval(value: Estimate, units: dict[str, float] | None = None) -> str:
    return f"{_amount(value.low, units)} to {_amount(value.high, units)}"


def _amount(value: float, units: dict[str, float] | None = None) -> str:
    if units is None:
        return f"{value:.3g}"
    size, unit = unit_of(value, units)
    return f"{value / size:.3g} {unit}"


def unit_of(value: float, units: dict[str, float]) -> tuple[float, str]:
    """The first of these units that is not larger than a value: its size, and its name."""
    return next((size or 1.0, unit) for unit, size in units.items() if abs(value) >= size)
