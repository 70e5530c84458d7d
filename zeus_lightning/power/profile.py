"""A power profile: what was measured for a batch size on a GPU model, and the limit chosen from it.

The same JSON object is the file at `profile_path` and the body of
`/api/v1/jobs/{id}/power-profiles/{batch_size}`:

    {"device_model": "NVIDIA H200", "driver": "570.86.15", "num_devices": 2, "batch_size": 256,
     "points": [{"limit_w": 700, "energy_j": 91.3, "time_s": 0.074}, ...],
     "chosen_w": 450, "selector": "zeus-cost", "eta_knob": 0.5, "max_power_w": 1400.0,
     "search": "information", "measured_at": "2026-05-04T12:00:00Z"}

`points` are estimates, one for each limit.
"""

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, Self

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.selectors import PowerPoint, Selector, SelectorInputs

_MAX = 1e30
"""Every measured value is below this."""


@dataclass(frozen=True)
class ProfileKey:
    """What a profile is valid for: GPUs' model, their number over all nodes, global batch size."""

    device_model: str
    num_devices: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class PowerProfile:
    """What was measured, and the limit and the names of the selector and search that chose it.

    `device_model`, `num_devices` and `batch_size` are as in `ProfileKey`, `eta_knob` and
    `max_power_w` as in the `SelectorInputs` given to the selector.

    An invalid value raises a `ZeusConfigError` that names the member.

    Args:
        driver: The driver's version, for information.
        points: The estimate for each limit that was measured, in any order.
        measured_at: Time of the measurement, in ISO 8601 with the offset to UTC.
    """

    device_model: str
    driver: str
    num_devices: int
    batch_size: int
    points: tuple[PowerPoint, ...]
    chosen_w: int
    selector: str
    eta_knob: float
    max_power_w: float
    search: str
    measured_at: str

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("device_model", "selector", "search"):
                _check(_is(str, value) and value != "", name, value, "some text")
            elif name in ("num_devices", "batch_size"):
                _check(_is(int, value) and 0 < value < _MAX, name, value, "a positive integer")
            elif name in ("eta_knob", "max_power_w"):
                _check(_is(int | float, value) and value < _MAX, name, value, "a number")
        _check(_is(str, self.driver), "driver", self.driver, "text")
        self.inputs  # noqa: B018 - checks their ranges
        _check(bool(self.points), "points", self.points, "at least one point")
        rule = "a positive integer of watts, and positive joules and seconds"
        for point in self.points:
            values = asdict(point)
            good = all(_is(int | float, value) and 0 < value < _MAX for value in values.values())
            _check(good and _is(int, point.limit_w), "points", values, rule)
        limits = [point.limit_w for point in self.points]
        _check(len(set(limits)) == len(limits), "points", limits, "of different limits")
        chosen_ok = _is(int, self.chosen_w) and self.chosen_w in limits
        _check(chosen_ok, "chosen_w", self.chosen_w, f"one of {limits}")
        _check(_is_instant(self.measured_at), "measured_at", self.measured_at, "ISO 8601 with Z")

    @property
    def inputs(self) -> SelectorInputs:
        """The selector's inputs besides the points."""
        return SelectorInputs(eta_knob=self.eta_knob, max_power_w=self.max_power_w)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        values = asdict(self)
        return {**values, "points": list(values["points"])}

    def dumps(self) -> str:
        """Return the JSON object as text, for a file."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read a profile from a JSON object; members unknown to this version are ignored."""
        values = members(data, cls, "a power profile")
        points = values["points"]
        _check(isinstance(points, list), "points", points, "a list")
        values["points"] = tuple(
            PowerPoint(**members(point, PowerPoint, "a point of a power profile"))
            for point in points
        )
        return cls(**values)

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Read a profile from JSON text; raise a `ZeusConfigError` if it is invalid."""
        return cls.from_json(parse(text))

    def check_fits(self, run: ProfileKey) -> None:
        """Raise a `ZeusConfigError` unless the profile is valid for a run's GPUs and batch size."""
        for name, value in asdict(run).items():
            if getattr(self, name) != value:
                raise ZeusConfigError(
                    f"the power profile has {name} {getattr(self, name)!r}, but this run's is "
                    f"{value!r}; use another profile_path for this run",
                    fields={"field": name},
                )

    def choose_again(self, selector: Selector, inputs: SelectorInputs) -> Self:
        """Return the profile with the limit that `selector` chooses from the same points."""
        chosen_w = selector.select(self.points, inputs)
        return replace(self, chosen_w=chosen_w, selector=selector.name, **asdict(inputs))


def parse(text: str | bytes) -> object:
    """Parse JSON; raise a `ZeusConfigError` if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ZeusConfigError(f"a power profile must be JSON: {error}") from error


def members(data: object, cls: type, what: str) -> dict[str, Any]:
    """Return the members of a JSON object that are fields of `cls`."""
    if not isinstance(data, dict):
        raise ZeusConfigError(f"{what} must be a JSON object, not {data!r:.80}")
    missing = [field.name for field in fields(cls) if field.name not in data]
    if missing:
        raise ZeusConfigError(f"{what} lacks {', '.join(missing)}")
    return {field.name: data[field.name] for field in fields(cls)}


def _is(kind: Any, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_instant(text: object) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def _check(valid: bool, name: str, value: object, rule: str) -> None:
    if not valid:
        raise ZeusConfigError(f"{name} of the power profile is {value!r:.80}; it must be {rule}")
