"""Read the power profiles that Zeus's own optimizer saves.

`GlobalPowerLimitOptimizer` of the Zeus project (`zeus.optimizer.power_limit`, release 0.16) writes

    {"measurements": [{"power_limit": 300, "energy": 1200.5, "time": 4.1}, ...]}

with watts, and joules of all GPUs and seconds of its `profile_steps` batches together. The file
names neither GPUs nor batch size: as Zeus does, take it for a profile of the run that reads it.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from zeus_lightning.errors import ZeusConfigError
from zeus_lightning.power.profile import PowerProfile, ProfileKey, members
from zeus_lightning.power.selectors import PowerPoint, SelectorInputs, ZeusCost


@dataclass(frozen=True)
class _Measurement:
    power_limit: int
    energy: float
    time: float


def is_zeus_profile(data: object) -> bool:
    """Whether a JSON value is a profile of Zeus's own optimizer."""
    return isinstance(data, dict) and "measurements" in data and "points" not in data


def from_zeus(data: object, run: ProfileKey, steps: int, measured_at_s: float) -> PowerProfile:
    """Convert a profile of Zeus's own optimizer, with the limit of least cost chosen.

    Args:
        data: The JSON value.
        run: The GPUs and batch size of the run that reads it.
        steps: Batches that each measurement took together.
        measured_at_s: When it was saved, in Unix seconds.

    Raises:
        ZeusConfigError: A value is missing or invalid; the message names it.
    """
    measurements = data["measurements"] if isinstance(data, dict) else None
    if not isinstance(measurements, list) or not measurements:
        raise ZeusConfigError(f"measurements of Zeus's power profile are {measurements!r:.80}")
    points = []
    for each in measurements:
        values = members(each, _Measurement, "a measurement of Zeus's power profile")
        if not all(isinstance(value, int | float) and value > 0 for value in values.values()):
            raise ZeusConfigError(f"a measurement of Zeus's power profile is {each!r:.80}")
        one = _Measurement(**values)
        points.append(PowerPoint(one.power_limit, one.energy / steps, one.time / steps))
    highest_w = max(point.limit_w for point in points)
    inputs = SelectorInputs(max_power_w=float(highest_w * run.num_devices))
    return PowerProfile(
        **asdict(run),
        **asdict(inputs),
        driver="",
        points=tuple(points),
        chosen_w=highest_w,
        selector=ZeusCost().name,
        search="sweep",
        measured_at=datetime.fromtimestamp(measured_at_s, UTC).isoformat(timespec="seconds"),
    ).choose_again(ZeusCost(), inputs)
