"""A power profile: what was measured for a batch size on a GPU model, and the limit chosen from it.

The same JSON object is the file at `profile_path` and the body of
`/api/v1/jobs/{id}/power-profiles/{batch_size}`:

    {"device_model": "NVIDIA H200", "num_devices": 2, "batch_size": 256,
     "points": [{"limit_w": 700, "energy_j": 91.3, "time_s": 0.074}, ...],
     "chosen_w": 450, "selector": "zeus-cost", "eta_knob": 0.5, "max_power_w": 1400.0,
     "measured_at": "2026-05-04T12:00:00Z"}

`points` are estimates, one for each limit.
"""

from dataclasses import asdict, astuple, dataclass, fields, replace
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
    """What was measured, and the limit and the name of the selector that chose it.

    `device_model`, `num_devices` and `batch_size` are as in `ProfileKey`, `eta_knob` and
    `max_power_w` as in the `SelectorInputs` given to the selector.

    Args:
        points: The estimate for each limit that was measured, in any order.
        measured_at: Time of the measurement, in ISO 8601 with the offset to UTC.
    """

    device_model: str
    num_devices: int
    batch_size: int
    points: tuple[PowerPoint, ...]
    chosen_w: int
    selector: str
    eta_knob: float
    max_power_w: float
    measured_at: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        values = asdict(self)
        return {**values, "points": list(values["points"])}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read a profile from a JSON object; members unknown to this version are ignored.

        Raises:
            ZeusConfigError: It is not a profile, or its points cannot be compared.
        """
        try:
            points = tuple(
                PowerPoint(int(each["limit_w"]), float(each["energy_j"]), float(each["time_s"]))
                for each in data["points"]
            )
            values = {each.name: data[each.name] for each in fields(cls)}
            profile = cls(**values | {"points": points})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ZeusConfigError(f"it is not a power profile: {error!r:.200}") from error
        if not points or not all(0 < value < _MAX for point in points for value in astuple(point)):
            raise ZeusConfigError(
                "a power profile needs points with positive watts, joules and seconds"
            )
        return profile

    def check_fits(self, run: ProfileKey) -> None:
        """Raise a `ZeusConfigError` unless the profile is valid for a run's GPUs and batch size."""
        for name, value in asdict(run).items():
            if getattr(self, name) != value:
                raise ZeusConfigError(
                    f"the power profile has {name} {getattr(self, name)!r}, but this run's is "
                    f"{value!r}",
                    fields={"field": name},
                )

    def choose_again(self, selector: Selector, inputs: SelectorInputs) -> Self:
        """Return the profile with the limit that `selector` chooses from the same points.

        Raises:
            ZeusConfigError: It chooses another limit than theirs.
        """
        chosen_w = selector.select(self.points, inputs)
        if chosen_w not in {point.limit_w for point in self.points}:
            raise ZeusConfigError(
                f"the selector chose {chosen_w!r} W, which was not measured; select() must return "
                "the limit_w of one of its points"
            )
        return replace(self, chosen_w=chosen_w, selector=selector.name, **asdict(inputs))
