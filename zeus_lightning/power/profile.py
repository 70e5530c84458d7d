"""A power profile: what was measured for a batch size on a GPU model, and what was chosen of it.

The same JSON object is the file at `profile_path` and the body of
`/api/v1/jobs/{id}/power-profiles/{batch_size}`:

    {"device_model": "NVIDIA H200", "driver": "570.86.15", "num_devices": 2, "batch_size": 256,
     "points": [{"limit_w": 700, "energy_j": 91.3, "time_s": 0.074}, ...],
     "chosen_w": 450, "selector": "zeus-cost", "eta_knob": 0.5, "max_power_w": 1400.0,
     "search": "golden", "measured_at": "2026-05-04T12:00:00Z"}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, Self

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.selectors import PowerPoint, Selector, SelectorInputs

_MAX = 1e30
"""What is not below this is no measurement."""


@dataclass(frozen=True, kw_only=True)
class PowerProfile:
    """See the module's text.

    Args:
        device_model: The GPUs' model, as the meter names it.
        driver: The driver's version, for information.
        num_devices: GPUs that train, over all nodes.
        batch_size: Global.
        points: What was measured, in any order: joules per batch over all GPUs, seconds per batch
            of the slowest rank.
        chosen_w: The limit chosen; one of the points'.
        selector: Name of the selector that chose.
        eta_knob: What the selector was told of the run, see `SelectorInputs`.
        max_power_w: Likewise.
        search: Name of the search that chose what to measure.
        measured_at: When, in ISO 8601 with the offset to UTC.

    Raises:
        ZeusConfigError: A value cannot be.
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
        for name in ("device_model", "selector", "search"):
            value = getattr(self, name)
            _check(_is(str, value) and value != "", name, value, "some text")
        _check(_is(str, self.driver), "driver", self.driver, "text")
        for name in ("num_devices", "batch_size"):
            value = getattr(self, name)
            _check(_is(int, value) and 0 < value < _MAX, name, value, "a positive integer")
        for name in ("eta_knob", "max_power_w"):
            value = getattr(self, name)
            _check(_is(int | float, value) and value < _MAX, name, value, "a number")
        self.inputs  # noqa: B018 - checks their ranges
        _check(bool(self.points), "points", self.points, "at least one point")
        for point in self.points:
            good = _is(int, point.limit_w) and 0 < point.limit_w < _MAX
            for value in (point.energy_j, point.time_s):
                good = good and _is(int | float, value) and 0 < value < _MAX
            rule = "a positive integer of watts, and positive joules and seconds"
            _check(good, "points", asdict(point), rule)
        limits = [point.limit_w for point in self.points]
        _check(len(set(limits)) == len(limits), "points", limits, "of different limits")
        chosen_ok = _is(int, self.chosen_w) and self.chosen_w in limits
        _check(chosen_ok, "chosen_w", self.chosen_w, f"one of {limits}")
        _check(_is_instant(self.measured_at), "measured_at", self.measured_at, "ISO 8601 with Z")

    @property
    def inputs(self) -> SelectorInputs:
        """What the selector was told of the run."""
        return SelectorInputs(eta_knob=self.eta_knob, max_power_w=self.max_power_w)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, of plain values."""
        return {**asdict(self), "points": [asdict(point) for point in self.points]}

    def dumps(self) -> str:
        """The same as JSON text, for a file."""
        return json.dumps(self.to_json(), indent=2) + "\n"

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Build from a JSON object; members this version does not know are ignored.

        Raises:
            ZeusConfigError: A member is missing, or its value cannot be; the message names it.
        """
        values = _members(data, cls, "a power profile")
        points = values["points"]
        _check(isinstance(points, list), "points", points, "a list")
        values["points"] = tuple(
            PowerPoint(**_members(point, PowerPoint, "a point of a power profile"))
            for point in points
        )
        return cls(**values)

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Build from JSON text, a profile file's for instance.

        Raises:
            ZeusConfigError: As `from_json`, or the text is no JSON.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ZeusConfigError(f"a power profile must be JSON: {error}") from error
        return cls.from_json(data)

    def check_fits(self, *, device_model: str, num_devices: int, batch_size: int) -> None:
        """See that the profile is of the run's GPUs and batch size.

        Raises:
            ZeusConfigError: It is of others; the message tells both.
        """
        run = {"device_model": device_model, "num_devices": num_devices, "batch_size": batch_size}
        for name, value in run.items():
            if getattr(self, name) != value:
                raise ZeusConfigError(
                    f"the power profile is of {name} {getattr(self, name)!r}, but this run's is "
                    f"{value!r}; profile anew, into another file",
                    fields={"field": name},
                )

    def choose_again(self, selector: Selector, inputs: SelectorInputs) -> Self:
        """The profile as `selector` chooses from its points, with nothing measured anew."""
        return replace(
            self,
            chosen_w=selector.select(self.points, inputs),
            selector=selector.name,
            eta_knob=inputs.eta_knob,
            max_power_w=inputs.max_power_w,
        )


def _members(data: object, cls: type, what: str) -> dict[str, Any]:
    """The members of a JSON object that are fields of `cls`."""
    if not isinstance(data, dict):
        raise ZeusConfigError(f"{what} must be a JSON object, not {data!r:.80}")
    names = [field.name for field in fields(cls)]
    missing = [name for name in names if name not in data]
    if missing:
        raise ZeusConfigError(f"{what} lacks {', '.join(missing)}")
    return {name: data[name] for name in names}


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
